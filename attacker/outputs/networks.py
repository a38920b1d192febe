"""What attacks on outputs train: a decoder from outputs to slices, and a critic that tells two kinds apart.

Both are told the class of a sample where there are classes: the label holder has the labels of all.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from attacker.interface import Lack, RefusalError, Setting
from vfl.models.layers import evaluating

LEAST = 10
"""Fewer samples than this are no picture of their kind."""


def check_auxiliary(attack: str, setting: Setting) -> None:
    """Refuse a run of which too few samples are known whole, or the place of a slice is not."""
    if setting.auxiliary < LEAST:
        found = f"auxiliary, which says of how many it knows the whole, is {setting.auxiliary}"
        raise RefusalError(attack, Lack(f"{LEAST} samples that it knows from elsewhere, at the least", found))
    hidden = next((worker for worker, box in enumerate(setting.boxes) if box.empty), None)
    if hidden is not None:
        raise RefusalError(attack, Lack("the places of all slices", f"those of worker {hidden}'s are not known"))


def classes_of(setting: Setting) -> Tensor:
    """Return a row for each sample: its class as the label holder has it, nothing where a number is predicted."""
    if setting.labels is None or setting.loss.of_number:
        return torch.zeros(setting.samples, 0)
    return one_hot(torch.tensor(setting.labels).long(), setting.classes).float()


def beside(setting: Setting) -> Tensor:
    """Return what a critic is told of each sample: its class, and the label holder's own slice of it."""
    own = [part.flatten(1).float() for part in setting.held.slices.values()]
    return torch.cat([classes_of(setting), *own], dim=1)


def priors(setting: Setting) -> tuple[str, ...]:
    """Return what else critics and decoders use, for the ledger."""
    own = ("own slice",) if setting.held.slices else ()
    return (*own, "pixels between 0 and 1") if len(setting.boxes[0].sample_shape) > 1 else own


class Decoder(nn.Module):
    """Makes a slice of an output and what is known besides; pixels lie between 0 and 1."""

    def __init__(self, width: int, shape: tuple[int, ...], *, hidden: int, images: bool) -> None:
        super().__init__()
        self._shape, self._images = shape, images
        self._layers = dense(width, hidden, hidden, math.prod(shape))

    def forward(self, z: Tensor, known: Tensor) -> Tensor:
        """Return slices."""
        made: Tensor = self._layers(torch.cat([z, known], dim=1))
        return (torch.sigmoid(made) if self._images else made).reshape(-1, *self._shape)

    def rebuild(self, z: Tensor, known: Tensor) -> Tensor:
        """Return slices without learning from it."""
        with torch.no_grad(), evaluating(self):
            made: Tensor = self(z, known)
        return made


class Critic(nn.Module):
    """Tells two kinds apart: positive for the first."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self._layers = dense(width, hidden, hidden, 1)

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        """Return a number for each sample."""
        said: Tensor = self._layers(torch.cat([x.flatten(1), known], dim=1))
        return said.squeeze(1)

    def fooled(self, x: Tensor, known: Tensor) -> Tensor:
        """Return the loss of samples that want to be taken for the first kind."""
        said = self(x, known)
        return binary_cross_entropy_with_logits(said, torch.ones_like(said))

    def loss(self, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
        """Return how badly it tells samples of the first kind from those of the second."""
        said, other = self(*first), self(*second)
        wrong = binary_cross_entropy_with_logits(other, torch.zeros_like(other))
        return binary_cross_entropy_with_logits(said, torch.ones_like(said)) + wrong


def dense(*widths: int) -> nn.Sequential:
    """Return dense layers."""
    layers: list[nn.Module] = []
    for into, out in pairwise(widths):
        layers += [nn.Linear(into, out), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])
