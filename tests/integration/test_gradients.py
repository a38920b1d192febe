"""What reaches the coordinator over the wire is what autograd says on the undivided data."""

import json

import pytest
import torch

from tests.support import assert_close, assert_same, flat, run_in_one_process, run_in_processes, small_config
from vfl.datasets.slices import load_data

UNEQUAL = {"workers": 3, "batch_size": 8, "rounds": 4, "slices": ["0:8,0:3", "0:2,3:8", "2:8,3:8"], "label_holder": 2}


@pytest.mark.parametrize(
    "config",
    [
        small_config(training={"lr": 0.1, "momentum": 0.9}, federation={"rounds": 8}),
        small_config(training={"optimizer": "adam", "lr": 0.01}, federation={"schedule": "uniform"}),
        small_config(federation={"workers": 16, "label_holder": 5}),
        small_config(federation=UNEQUAL),
        small_config(
            data={"name": "photos", "samples": 10, "tile": 16},
            model={"name": "cafe_cnn"},
            federation={"batch_size": 4, "rounds": 3},
        ),
        small_config(data={"name": "breast_cancer", "samples": 30}, training={"lr": 0.1}),
    ],
    ids=["4 training", "4 adam uniform", "16 workers", "3 unequal", "cnn", "table"],
)
def test_uploaded_gradients_are_those_of_one_process(config, tmp_path):
    seen = run_in_processes(config, tmp_path)
    expected = run_in_one_process(config)
    assert len(seen) == len(expected) == config.federation.rounds
    for found, oracle in zip(seen, expected, strict=True):
        assert torch.equal(found.indices, oracle.indices)
        assert found.version == oracle.version
        assert_close(found.parameters, oracle.parameters, tolerance=1e-4)
        assert_close(found.gradients, oracle.gradients, tolerance=1e-4 if config.training.lr else 1e-5)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rounds"] == config.federation.rounds
    assert summary["ended"] == "complete"
    assert len(summary["train"]["losses"]) == config.federation.rounds


def test_the_same_seed_gives_the_same_numbers_twice(tmp_path):
    config = small_config(training={"lr": 0.1}, federation={"workers": 2})
    first, second = (run_in_processes(config, tmp_path / name) for name in ("a", "b"))
    assert_same(first, second)
    losses = [json.loads((tmp_path / name / "summary.json").read_text())["train"] for name in ("a", "b")]
    assert losses[0] == losses[1]
    other = run_in_one_process(small_config(training={"lr": 0.1}, federation={"workers": 2}, seed=4))
    assert not torch.equal(flat(other[0].gradients)["0.1.weight"], flat(first[0].gradients)["0.1.weight"])


def test_training_learns_and_is_evaluated_on_the_test_samples(tmp_path):
    config = small_config(
        data={"name": "digits", "samples": 400, "test_samples": 297},
        federation={"batch_size": 40, "rounds": 120},
        training={"optimizer": "adam", "lr": 0.01},
        model={"name": "mlp", "hidden": [32]},
        transcript=False,
    )
    from vfl.local.launch import run_federation

    run_federation(config, load_data(config), tmp_path)
    train = json.loads((tmp_path / "summary.json").read_text())["train"]
    assert train["loss_last"] < 0.5 * train["loss_first"]
    assert train["test_accuracy"] > 0.7


def test_frozen_parameters_cross_the_wire_once(tmp_path):
    sizes = {}
    for rounds in (2, 6):
        config = small_config(
            federation={"rounds": rounds}, transcript=False, data={"name": "digits", "samples": 24, "test_samples": 0}
        )
        run_in_folder = tmp_path / str(rounds)
        from vfl.local.launch import run_federation

        run_federation(config, load_data(config), run_in_folder)
        sizes[rounds] = json.loads((run_in_folder / "summary.json").read_text())["bytes"]
    assert sizes[6]["up"] > 2.9 * sizes[2]["up"]
    per_round = (sizes[6]["down"] - sizes[2]["down"]) / 4 / 4
    assert per_round < 60  # a round's order with eight indices, and no parameters
    assert sizes[2]["peer"] > 0


DROPOUT = """
from torch import nn
from vfl.models import SplitModel

class WithDropout(SplitModel):
    def bottom(self, shape):
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(0.5), nn.Linear(8, 4))
"""


@pytest.mark.slow
def test_a_model_that_draws_at_random_is_reproducible_too(tmp_path, monkeypatch):
    (tmp_path / "dropout_model.py").write_text(DROPOUT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = small_config(model={"name": "dropout_model:WithDropout"}, training={"lr": 0.1})
    assert_same(*(run_in_processes(config, tmp_path / name) for name in ("a", "b")))
