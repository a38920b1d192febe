"""A federation in one process, against the same one in processes: the same numbers, bit for bit."""

import asyncio

import numpy as np
import pytest
import torch

import vfl
from tests.support import small_config
from vfl.datasets.slices import load_data
from vfl.errors import RunFailedError, UserError
from vfl.local.launch import run_federation
from vfl.referee import score_run

MEASURED = ("seconds", "bytes", "queue", "coordinator_memory", "rounds_per_second")
"""Times, traffic and memory."""

FIXED = {"workers": 3, "batch_size": 8, "rounds": 6, "fixed_secrets": True}
CASES = {
    "frozen, exact": {
        "federation": {"workers": 4, "batch_size": 8, "rounds": 12},
        "model": {"name": "cafe_cnn", "fc1": 64},
        "attack": {"name": "exact"},
    },
    "Adam, a defence, evaluations": {
        "federation": FIXED | {"label_holder": 1},
        "training": {"optimizer": "adam", "lr": 0.01, "clip_norm": 0.5, "evaluate_every": 3},
        "defence": [{"name": "noise", "scale": 0.01}, {"name": "prune"}],
        "attack": {"name": "cafe", "switch_one": None, "switch_two": None},
        "snapshots": 3,
    },
    "horizontal": {
        "federation": FIXED | {"kind": "horizontal"},
        "training": {"lr": 0.1, "momentum": 0.9},
        "attack": {"name": "dlg", "iterations": 5},
    },
    "labels at the coordinator": {
        "federation": {"workers": 2, "batch_size": 8, "rounds": 3, "label_holder": "coordinator"},
        "training": {"lr": 0.1},
    },
}


def without_times(tree):
    """A summary's numbers that must be the same."""
    if isinstance(tree, list):
        return [without_times(one) for one in tree]
    if isinstance(tree, dict):
        return {key: without_times(value) for key, value in tree.items() if key not in MEASURED}
    return tree


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_the_processes(case, tmp_path):
    config = small_config(**CASES[case])
    data = load_data(config)
    run_federation(config, data, tmp_path / "processes")
    score_run(tmp_path / "processes", config, data)
    expected = vfl.load(tmp_path / "processes")
    rounds = []
    found = vfl.simulate(config, out=tmp_path / "here", on_round=lambda seen: rounds.append(seen.round))
    assert rounds == list(range(1, len(expected.losses) + 1))
    assert without_times(found.summary) == without_times(expected.summary)
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)
    models = [torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("here", "processes")]
    assert all(torch.equal(models[0][name], tensor) for name, tensor in models[1].items())


CONFIG = {
    "data": {"name": "digits", "samples": 16, "test_samples": 0},
    "federation": {"workers": 2, "batch_size": 8, "rounds": 2},
    "model": {"name": "mlp", "hidden": [6]},
}


def test_a_dict_or_a_file_is_simulated_also_where_an_event_loop_runs_and_leaves_nothing(tmp_path, monkeypatch):
    async def notebook():
        return vfl.simulate(CONFIG, {"federation.rounds": 3})

    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    result = asyncio.run(notebook())
    assert len(result.losses) == 3
    assert result.recovery.slices is None
    assert len(result.model.bottoms) == len(result.setting.boxes) == 2
    assert not list(tmp_path.iterdir())
    assert not result.folder.exists()
    assert torch.get_num_threads() == threads


def test_bad_input_is_refused_as_by_the_command():
    with pytest.raises(UserError, match="there is no attack called 'magic'"):
        vfl.simulate(CONFIG, {"attack.name": "magic"})
    with pytest.raises(RunFailedError, match="did training diverge"):
        vfl.simulate(CONFIG, {"training.lr": 1e30, "federation.rounds": 5})
