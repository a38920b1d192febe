"""A bank and a shop train under Adam 1e-3, as a new user would: no certified row is wrong."""

import pytest
import torch

import vfl
from attacker.certificate import Evidence
from tests.bank import bank_config, write_files
from vfl.bench.certificates import right_samples
from vfl.config import parse_config
from vfl.datasets.slices import boxes_of, load_data
from vfl.local.one_process import observations
from vfl.maths.metrics import exact_rows
from vfl.models.layers import fully_connected
from vfl.models.whole import first_model
from vfl.observation import Setting
from vfl.recovery import CERTIFIED

EMBEDDINGS = {"name": "embedded", "numbers": 3, "width": 9, "hidden": [64], "output": 16}


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({}, 80),  # of 100, in batches of 4 and three epochs: some share all their batches
        ({"model": EMBEDDINGS}, 60),
        ({"defence": {"name": "noise", "scale": 0.01}}, 0),
    ],
    ids=["mlp", "embeddings", "noise"],
)
def test_no_certified_row_is_wrong(changes, least, tmp_path):
    run = vfl.simulate(bank_config(write_files(tmp_path, 100), **changes))
    certified = torch.tensor(run.arrays["certified"])
    assert int(certified.sum()) == run.result.attack.certified
    assert not bool((certified & ~right_samples(run)).any())
    assert int(certified.sum()) >= least


@pytest.mark.parametrize("batch", [8, 32])
def test_larger_batches_certify_what_is_right_and_nothing_else(batch, tmp_path):
    """Batches of as many rows as columns and more: `exact` finds no rows in them, another attack may."""
    federation = {"workers": 2, "batch_size": batch, "epochs": 3, "label_holder": 1}
    config = parse_config(bank_config(write_files(tmp_path, 128), federation=federation), "the bank")
    data = load_data(config)
    setting = Setting.of(config, boxes_of(data, config), data.classes, len(data.x))
    layers = [fully_connected(own, (8,))[0] for own in first_model(setting).bottoms]
    evidence = Evidence(setting, layers)
    for observation in observations(setting, data.x, data.y, config.training):
        evidence.add(observation)

    def certified(x):
        return (evidence.certify([box.cut(x) for box in setting.boxes], data.y) < CERTIFIED).all(dim=1)

    assert float(certified(data.x).float().mean()) > 0.95
    for share in (0.3, 0.003):  # some rows are mixtures of two
        x = data.x.clone()
        x[:12] = (1 - share) * x[:12] + share * x[12:24]
        assert int(exact_rows(x, data.x).sum()) < 128
        assert not bool((certified(x) & ~exact_rows(x, data.x)).any())
