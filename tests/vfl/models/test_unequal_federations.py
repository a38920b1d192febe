"""Federations of unequal workers in real processes, beside autograd on the undivided data."""

import json

import pytest
import torch

from tests.support import assert_close, run_in_one_process, run_in_processes, small_config
from vfl.config import parse_config
from vfl.errors import UserError


def test_different_networks_and_slices_and_a_label_holder_without_features(tmp_path):
    config = small_config(
        federation={
            "workers": 3, "label_holder": 2, "label_holder_features": False, "slices": ["0:8,0:1", "0:8,1:8"],
        },
        model={
            "name": "mlp", "hidden": [12],
            "bottoms": {1: {"name": "examples.architectures:batchnorm_cnn", "channels": 4}},
            "top": {"name": "tests.vfl.models.tops:two_layers"},
        },
        training={"lr": 0.1},
    )  # fmt: skip
    seen = run_in_processes(config, tmp_path)
    expected = run_in_one_process(config)
    for found, own in zip(seen, expected, strict=True):
        assert torch.equal(found.indices, own.indices)
        assert len(found.gradients.bottoms) == 2
        assert found.complete
        assert_close(found.gradients, own.gradients, 1e-3)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["train"]["test_accuracy"] is not None


def test_shared_bottom_models_train_as_one(tmp_path):
    config = small_config(federation={"workers": 2}, model={"name": "mlp", "shared": True}, training={"lr": 0.1})
    seen = run_in_processes(config, tmp_path)
    for found, own in zip(seen, run_in_one_process(config), strict=True):
        assert_close(found.gradients, own.gradients)
        one, other = found.parameters.bottoms
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert not torch.equal(found.gradients.bottoms[0]["1.weight"], found.gradients.bottoms[1]["1.weight"])
    last, first = seen[-1].parameters.bottoms[0], seen[0].parameters.bottoms[0]
    step = sum(g.gradients.bottoms[m]["1.bias"] for g in seen[:-1] for m in (0, 1))
    torch.testing.assert_close(last["1.bias"], first["1.bias"] - 0.1 * step)


@pytest.mark.parametrize(
    ("federation", "sentence"),
    [
        ({"label_holder_features": False}, "must be the last of two workers or more; set label_holder to 3"),
        (
            {"label_holder_features": False, "label_holder": 3, "slices": ["0:1"]},
            "slices lists 1 slices for 3 workers with features",
        ),
    ],
)
def test_what_cannot_be_is_a_sentence(federation, sentence):
    tree = {"data": {"name": "digits"}, "federation": {"batch_size": 4, "epochs": 1, **federation}}
    with pytest.raises(UserError, match=sentence):
        parse_config(tree, "the test")
