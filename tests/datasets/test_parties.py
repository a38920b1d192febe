"""Parties with files of their own, in a simulation: who has the labels, and who has nothing else."""

import pytest

from vfl.config import parse_config
from vfl.errors import UserError
from vfl.slices import load_data

BANK = "who,debt,good\na,1,no\nb,2,no\nc,3,yes\n"
SHOP = "who,buys,good\na,10,yes\nb,20,no\nc,30,yes\n"


def config_of(folder, *texts, **federation):
    for number, text in enumerate(texts):
        (folder / f"{number}.csv").write_text(text, encoding="utf-8")
    files = [str(folder / f"{number}.csv") for number in range(len(texts))]
    tree = {
        "data": {"name": "csv", "files": files, "label": "good", "id": "who"},
        "federation": {"workers": len(texts), "batch_size": 2, "epochs": 2} | federation,
        "model": {"name": "mlp"},
    }
    return parse_config(tree, "the test")


def labels(data):
    return {who: data.class_names[label] for who, label in zip(data.ids, data.y.tolist(), strict=True)}


def test_the_labels_are_those_of_the_label_holder(tmp_path):
    for holder, of_a in ((0, "no"), (1, "yes")):
        data = load_data(config_of(tmp_path, BANK, SHOP, label_holder=holder))
        assert labels(data)["a"] == of_a
        assert [column.name for column in data.columns] == ["debt", "buys"]


def test_labels_that_only_another_party_has_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"1\.csv has no column 'good', and worker 1 is the label holder"):
        load_data(config_of(tmp_path, BANK, SHOP.replace("good", "fine"), label_holder=1))
    with pytest.raises(UserError, match=r"data\.files: there are 2, one a worker, and worker 2 is the label holder"):
        load_data(config_of(tmp_path, BANK, SHOP, workers=3, label_holder=2))
    with pytest.raises(UserError, match=r"data\.label: 2 of the files have a column 'good', expected one"):
        load_data(config_of(tmp_path, BANK, SHOP, label_holder="coordinator"))
