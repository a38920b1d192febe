"""One gradient of the paper's network at one worker: batches of 40 of real images."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from attacker.exact.rays import samples_of
from tests.attacker.exact.rays.networks import backward, right, wrong_yet_certain
from vfl.models.cafe_cnn import CafeBottom, CafeCNN


@pytest.mark.skipif("CAFE_DATA" not in os.environ, reason="needs data in the folder that CAFE_DATA names")
@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_all_forty_samples_of_a_batch(name: str) -> None:
    path = Path(os.environ["CAFE_DATA"]) / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"there is no {path.name} in CAFE_DATA")
    images = torch.from_numpy(np.load(path)["x_train"][900:940]).float() / 255
    slices = images.reshape(40, *images.shape[1:3], -1).permute(0, 3, 1, 2)
    slices = slices[:, :, : slices.shape[2] // 2, : slices.shape[3] // 2]
    torch.manual_seed(0)
    bottom = CafeBottom(tuple(slices.shape[1:]), CafeCNN())
    inputs: list[torch.Tensor] = []
    layers = [layer for layer in bottom.modules() if isinstance(layer, torch.nn.Linear)][:2]
    layers[0].register_forward_hook(lambda _, given, __: inputs.append(given[0]))
    with torch.no_grad():
        bottom(slices)
        answers = torch.randn(40, 64) @ torch.diag((torch.arange(64) < 10).float())
        whole = backward(inputs[0], layers[0].weight, layers[0].bias, (layers[1].weight, answers))
        found = samples_of(whole.weight, whole.bias, cut_off=whole.cut_off, batch=40, seed=0)
    assert right(found, whole.h).all()
    assert wrong_yet_certain(found, whole.h) == 0
