"""Verdicts against a guess, from end to end: a bank and a shop, and rows that a model of other code has seen."""

import json

import numpy as np
import torch

import vfl
from tests.bank import bank_config, write_files
from vfl.config import parse_config
from vfl.datasets.slices import boxes_of, load_data
from vfl.folder.transcript import TranscriptWriter
from vfl.folder.verdict import verdict
from vfl.models.whole import first_model
from vfl.observation import ModelTensors, Observation, Setting, without_prefix


def test_noise_that_leaves_some_columns_better_than_a_guess_is_partly_leaked(tmp_path):
    """No row is exact, and yet the customers' jobs and regions are known far better than by their frequencies."""
    tree = bank_config(write_files(tmp_path, 100), defence={"name": "noise", "scale": 0.01})
    run = vfl.simulate(tree, out=tmp_path / "out")
    found, columns = verdict(run.result), {str(one.name): one for one in run.result.attack.columns}
    assert run.result.attack.share_exact == 0
    assert found.label == "partly leaked"
    assert columns["job"].exact.gain > 0.2
    assert columns["job"].in_words in found.sentence
    assert f"job of worker 0 ({columns['job'].exact.right:.1%} right, guessing" in found.sentence
    assert found.basis == "Against `exact` alone: nothing is said of other attacks."
    shown = (tmp_path / "out" / "summary.json").read_text()
    assert json.loads(shown)["attack"]["parties"][0]["values"]["leaked"]


def test_rows_of_a_transcript_by_other_code_are_scored_in_the_units_of_its_file(tmp_path):
    """Plain PyTorch trains on the numbers as they are; our loader would scale them."""
    draw = np.random.default_rng(0)
    x = np.c_[draw.uniform(0, 1, (40, 8)), draw.uniform(2, 9, (40, 8))].astype(np.float32)
    np.savez(tmp_path / "data.npz", x_train=x, y_train=draw.integers(0, 2, 40))
    tree = {
        "data": {"name": "npz", "path": str(tmp_path / "data.npz")},
        "federation": {"workers": 2, "batch_size": 4, "epochs": 3},
        "model": {"name": "mlp", "hidden": [64]},
        "attack": {"name": "exact"},
    }
    config = parse_config(tree, "other code")
    data = load_data(config)
    boxes = tuple(boxes_of(data, config))
    setting = Setting.of(config, boxes, data.classes, len(x))
    model, writer = first_model(setting), TranscriptWriter(tmp_path / "transcript", config, setting)
    rows = torch.tensor(x)
    batches = [batch for _ in range(3) for batch in torch.tensor(draw.permutation(40)).split(4)]
    for number, batch in enumerate(batches, start=1):
        loss = torch.nn.functional.cross_entropy(model([box.cut(rows[batch]) for box in boxes]), data.y[batch])
        gradients = _tensors(model, torch.autograd.grad(loss, list(model.parameters())))
        writer.observe(Observation(number, batch, 1, _tensors(model, list(model.parameters())), gradients))
    run = vfl.attack(tmp_path / "transcript", out=tmp_path / "out", quiet=True)
    assert run.summary["attack"]["share_exact"] > 0.5
    assert verdict(run.result).state == "leaked"
    assert any("not scaled" in note for note in run.summary["attack"]["notes"])


def _tensors(model, values):
    """Name tensors, one for each parameter of the model, as a transcript has them."""
    named = dict(zip((name for name, _ in model.named_parameters()), (v.detach() for v in values), strict=True))
    bottoms = tuple(without_prefix(f"bottoms.{worker}.", named) for worker in range(2))
    return ModelTensors(bottoms, without_prefix("top.", named))
