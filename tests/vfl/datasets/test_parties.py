"""Parties with files of their own, in a simulation: who has the labels, and who has nothing else."""

import asyncio

import pytest

from protos.alignment_pb2 import PlaceRequest
from server.alignment import AlignmentService
from vfl.config import parse_config
from vfl.datasets.slices import boxes_of, load_data, slice_for
from vfl.errors import UserError
from vfl.sweep.main import check_cells
from vfl.sweep.plan import Cell, Plan
from worker.alignment import table_facts

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


def test_a_sweep_reads_the_labels_of_each_label_holder(tmp_path):
    texts = (BANK, SHOP.replace("good", "fine"))
    cells = [Cell(f"at {at}", {}, config_of(tmp_path, *texts, label_holder=at), f"at-{at}") for at in (0, 1)]
    with pytest.raises(UserError, match=r"1\.csv has no column 'good', and worker 1 is the label holder"):
        check_cells(Plan("holders", {}, tuple(cells), None), tmp_path / "sweep.yaml")


def test_sentences_name_the_key_that_named_the_file(tmp_path):
    config = config_of(tmp_path, BANK, SHOP, label_holder=0)
    (tmp_path / "1.csv").unlink()
    with pytest.raises(UserError, match=r"^data\.files: there is no file .*1\.csv"):
        load_data(config)
    with pytest.raises(UserError, match=r"^--data: there is no file .*1\.csv"):
        table_facts(config, tmp_path / "1.csv", 1)
    (tmp_path / "1.csv").write_text("who,buys\na\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"^data\.files: .*1\.csv cannot be read as a table"):
        load_data(config)


ALONE = {"label_holder": 2, "label_holder_features": False}
REGISTRY = "who,good\na,yes\nb,no\nc,yes\n"


def test_a_label_holder_may_bring_ids_and_labels_alone(tmp_path):
    config = config_of(tmp_path, BANK, SHOP, REGISTRY, **ALONE)
    data = load_data(config)
    assert labels(data) == {"a": "yes", "b": "no", "c": "yes"}
    assert [box.shape for box in boxes_of(data, config)] == [(1,), (1,)]
    held = slice_for(data, config, 2)
    assert held.x.shape == (3, 0)
    assert held.y is not None
    assert table_facts(config, tmp_path / "2.csv", 2) == (3, 0, [])


def test_a_worker_without_columns_gets_a_sentence(tmp_path):
    config = config_of(tmp_path, BANK, SHOP, REGISTRY, label_holder=2)
    with pytest.raises(UserError, match=r"data: worker 2 has no columns; .*label_holder_features to false"):
        boxes_of(load_data(config), config)
    with pytest.raises(UserError, match=r"2\.csv: it has no columns besides 'good' and 'who'; give it some"):
        table_facts(config, tmp_path / "2.csv", 2)
    config = config_of(tmp_path, BANK, BANK, SHOP, **ALONE)
    with pytest.raises(UserError, match=r"worker 2, has 1 columns, and federation\.label_holder_features is false"):
        boxes_of(load_data(config), config)
    with pytest.raises(UserError, match=r"--data .*2\.csv: the label holder, worker 2, has 1 columns"):
        table_facts(config, tmp_path / "2.csv", 2)


def test_columns_may_leave_a_label_holder_without_features_out(tmp_path):
    config = config_of(tmp_path, BANK, SHOP, REGISTRY, **ALONE)
    for columns in ([["debt"], ["buys"]], [["debt"], ["buys"], []]):
        chosen = config.model_copy(update={"data": config.data.model_copy(update={"columns": columns})})
        assert len(boxes_of(load_data(chosen), chosen)) == 2
    one = {"name": "csv", "path": str(tmp_path / "0.csv"), "label": "good", "columns": [["debt"], []]}
    tree = {"data": one, "federation": {"workers": 2, "batch_size": 2, "epochs": 2}}
    with pytest.raises(UserError, match=r"data: worker 1 has no columns"):
        boxes_of(load_data(parse_config(tree, "the test")), parse_config(tree, "the test"))


class Call:
    async def abort(self, _code, reason):
        raise UserError(reason)


def test_the_coordinator_gives_no_features_the_place_that_is_none():
    async def places(*features):
        service = AlignmentService(len(features), tls=False, patience=30.0, started=lambda: False)
        asked = [service.Place(PlaceRequest(worker=w, features=n), Call()) for w, n in enumerate(features)]
        return [(list(told.start), list(told.stop)) for told in await asyncio.gather(*asked)]

    assert asyncio.run(places(2, 3, 0)) == [([0], [2]), ([2], [5]), ([0], [0])]
    for features in ((0, 3), (0,)):
        with pytest.raises(UserError, match="worker 0 has 0 features, expected 1"):
            asyncio.run(places(*features))
