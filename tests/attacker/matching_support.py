"""What the tests of gradient matching share: smooth images, models of odd kinds, a rival at work, its scores."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from attacker.interface import Recovery, attacks, silent
from vfl.local.one_process import observations
from vfl.maths.metrics import psnr
from vfl.models import SplitModel, models
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import Shape, assemble, partition
from vfl.referee import best_order
from vfl.registry import PluginSection

LENET = PluginSection(name="lenet")
NORMED = PluginSection(name="cafe_cnn", batch_norm=True, fc1=32, fc2=16)
CLASSES = 5


class Scaled(nn.Module):
    """A layer of its own kind, which no rule knows."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, shape[-1]))
        self.dense = nn.Linear(torch.Size(shape).numel(), 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.dense((x * self.scale).flatten(1)))


class ScaledModel(SplitModel):
    def bottom(self, shape: Shape) -> nn.Module:
        return Scaled(shape)


class Unbiased(SplitModel):
    """Its top model has no bias to read labels from."""

    def bottom(self, shape: Shape) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 12), nn.Sigmoid())

    def top(self, widths: Sequence[int], classes: int) -> nn.Module:
        return nn.Linear(sum(widths), classes, bias=False)


for name, plugin in (("test_scaled", ScaledModel), ("test_unbiased", Unbiased)):
    if name not in models.names():
        models.register(name)(plugin)


def images(samples: int, seed: int, size: int = 16) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(samples, 3, 4, 4, generator=random)
    return interpolate(coarse, size=(size, size), mode="bilinear"), torch.randint(
        0, CLASSES, (samples,), generator=random
    )


def setting_for(x: Tensor, batch_size: int, model: PluginSection = LENET, **changes) -> Setting:
    rounds = -(-len(x) // batch_size)
    boxes = tuple(partition(tuple(x.shape[1:]), changes.pop("workers", 4)))
    base = Setting(model, boxes, CLASSES, len(x), batch_size, "epochs", rounds, True, 0, "cpu")
    return replace(base, **changes)


def attacked(attack: str, setting: Setting, x: Tensor, y: Tensor, change=lambda o: o, **options) -> Recovery:
    running = attacks.build(PluginSection(name=attack, **options)).start(setting)
    for observation in observations(setting, x, y, TrainingConfig()):
        running.observe(change(observation))
    return running.recover(silent)


def scores(setting: Setting, recovery: Recovery, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return each sample's PSNR and whether its label is right, the order within a batch being free."""
    assert recovery.slices is not None
    assert recovery.labels is not None
    found = assemble(setting.boxes, list(recovery.slices))
    order = best_order(found, x, recovery.cell_of(len(x)))
    return psnr(found[order], x), recovery.labels[order] == y
