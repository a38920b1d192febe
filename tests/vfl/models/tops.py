"""Top models as plain factories."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def two_layers(widths: Sequence[int], classes: int, hidden: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(sum(widths), hidden), nn.Tanh(), nn.Linear(hidden, classes))


class Sums(nn.Module):
    """Adds up the workers' logits: no parameters."""

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, z: Tensor) -> Tensor:
        return z.reshape(len(z), -1, self.classes).sum(1)


def with_layer(widths: Sequence[int], classes: int, layer: str) -> nn.Module:
    """Has a layer by name in front of a dense one."""
    made = {
        "batch norm": nn.BatchNorm1d(sum(widths)),
        "frozen batch norm": nn.BatchNorm1d(sum(widths)).eval(),
        "dropout": nn.Dropout(0.1),
        "spectral norm": nn.utils.parametrizations.spectral_norm(nn.Linear(sum(widths), sum(widths))),
    }
    return nn.Sequential(made[layer], nn.Linear(sum(widths), classes))


def narrow(widths: Sequence[int], classes: int) -> nn.Module:
    return nn.Linear(sum(widths), classes - 1)


def misfit(widths: Sequence[int], classes: int) -> nn.Module:
    return nn.Linear(sum(widths) + 1, classes)


class Pair(nn.Module):
    """Puts out two things."""

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(sum(widths), classes)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.out(z), torch.zeros(1)
