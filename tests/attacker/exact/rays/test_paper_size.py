"""One gradient of the paper's network at one worker: batches of real images."""

import os
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from attacker.exact.rays import Found, samples_of, solve
from attacker.exact.workers.tails import cut_off, possible_v
from tests.attacker.exact.rays.networks import backward, right, wrong_yet_certain
from vfl.datasets import datasets
from vfl.local.one_process import observations
from vfl.models.cafe_cnn import CafeBottom, CafeCNN
from vfl.models.layers import fully_connected, representation
from vfl.models.whole import first_model
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection


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


@dataclass(frozen=True)
class Round:
    """One round of the bundled photographs at 16 workers, batches of 30: at a worker its gradient, and the truth."""

    weight: torch.Tensor
    bias: torch.Tensor
    h: torch.Tensor
    tail: tuple[torch.nn.Module, str, tuple[int, ...]]

    @classmethod
    def of(cls, worker: int, number: int) -> "Round":
        photos = datasets.build(PluginSection.model_validate({"name": "photos", "samples": 240})).load()
        model, boxes = PluginSection(name="cafe_cnn"), tuple(partition(photos.sample_shape, 16))
        setting = Setting(model, boxes, photos.classes, 240, 30, "epochs", 8, frozen=True, seed=5)
        bottom, shape = first_model(setting).double().eval().bottoms[worker], boxes[worker].shape
        layer = fully_connected(bottom, shape)[0].name
        seen = next(islice(observations(setting, photos.x, photos.y, TrainingConfig()), number - 1, None))
        own = seen.gradients.bottoms[worker]
        with torch.no_grad():
            h = representation(bottom, layer, boxes[worker].cut(photos.x)[seen.indices].double())
        return cls(own[f"{layer}.weight"], own[f"{layer}.bias"], h, (bottom, layer, shape))

    def samples(self, seed: int) -> Found:
        cut, span = partial(cut_off, *self.tail), partial(possible_v, *self.tail, through=None)
        return samples_of(self.weight, self.bias, cut_off=cut, span=span, batch=30, seed=seed)


def test_what_one_attempt_missed_is_found_by_another_with_other_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Round.of(worker=7, number=2)

    def found(attempts: int) -> list[int]:
        monkeypatch.setattr(solve, "ATTEMPTS", attempts)
        return [int(right(given.samples(seed), given.h, 1e-3).sum()) for seed in range(4)]

    once, again = found(1), found(3)
    assert all(more >= less for less, more in zip(once, again, strict=True))
    assert sum(again) > sum(once)


@pytest.mark.parametrize("worker", [7, 13, 14])  # where a v had as much as a third of another's
def test_all_h_together_tell_every_v(worker: int) -> None:
    given = Round.of(worker, number=3)
    found = given.samples(seed=3)
    away, place = (torch.cdist(found.h, given.h) / given.h.norm(dim=1)).min(dim=1)
    assert sorted(place.tolist()) == list(range(30))
    assert float(away.max()) < 1e-4
    v = torch.linalg.lstsq(given.h.T, given.weight.double().T).solution[place]
    assert float(((found.v - v).norm(dim=1) / v.norm(dim=1)).max()) < 1e-3
