"""Activations seen from behind: which input they had, and how steep they were there."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Activation(Protocol):
    """An activation function that can be inverted, at least in part."""

    def invert(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input z that gave the output a, and the derivative there; where that is 0, z is unknown."""


@dataclass(frozen=True)
class ReLU:
    """Tells its input where it is positive."""

    def invert(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return a, and 1 where it is positive: outputs below zero are errors, and show how large those are."""
        noise = torch.maximum(-3 * a.min(), 1e-7 * a.max())
        return a, (a > noise).to(a.dtype)


@dataclass(frozen=True)
class LeakyReLU:
    """Tells its input everywhere."""

    slope: float

    def invert(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input and the derivative."""
        return torch.where(a < 0, a / self.slope, a), torch.where(a < 0, self.slope, 1.0).to(a.dtype)


@dataclass(frozen=True)
class Sigmoid:
    """Tells its input where it is not saturated."""

    def invert(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input and the derivative."""
        a = a.clamp(1e-9, 1 - 1e-9)
        return torch.logit(a), a * (1 - a)


@dataclass(frozen=True)
class Tanh:
    """Tells its input where it is not saturated."""

    def invert(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input and the derivative."""
        a = a.clamp(-1 + 1e-9, 1 - 1e-9)
        return torch.atanh(a), 1 - a.square()
