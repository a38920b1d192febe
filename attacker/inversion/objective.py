"""How far the representations of a chunk of samples are from their targets."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from attacker.inversion.pooling import SoftenedPooling
from vfl.models.layers import representation


class Goal(Protocol):
    """What a search and the way down need of a problem: errors of each sample, relative, and those of some samples."""

    def rows(self, index: Tensor) -> "Goal":
        """Return the same for some of the samples."""

    def errors(self, x: Tensor, sharpness: float) -> Tensor:
        """Return the errors (samples, …), differentiable, max-pooling's gradient softened."""

    def residuals(self, x: Tensor) -> Tensor:
        """Return how large each sample's are."""


@dataclass(frozen=True)
class Objective:
    """h(x) = h for a chunk: each sample's error is relative to the length of its own target.

    With `unit` the target is a direction, of either sign, and so is what it is compared with.
    """

    model: nn.Module
    layer: str
    targets: Tensor
    lengths: Tensor
    unit: bool = False

    @classmethod
    def of(cls, model: nn.Module, layer: str, targets: Tensor, unit: bool = False) -> "Objective":
        """Build it; a target of zeros is measured absolutely."""
        lengths = targets.norm(dim=1)
        return cls(model, layer, targets, torch.where(lengths > 0, lengths, torch.ones_like(lengths)), unit)

    def rows(self, index: Tensor) -> "Objective":
        """Return the objective of some of the samples."""
        return Objective(self.model, self.layer, self.targets[index], self.lengths[index], self.unit)

    def errors(self, x: Tensor, sharpness: float) -> Tensor:
        """Return (h(x) - h) / |h|, differentiable, max-pooling's gradient softened."""
        with SoftenedPooling(sharpness):
            h = representation(self.model, self.layer, x)
        return self._apart(h) / self.lengths[:, None]

    def residuals(self, x: Tensor) -> Tensor:
        """Return |h(x) - h| / |h| of each sample."""
        with torch.no_grad():
            h = representation(self.model, self.layer, x)
        residuals: Tensor = self._apart(h).norm(dim=1) / self.lengths
        return residuals

    def _apart(self, h: Tensor) -> Tensor:
        if not self.unit:
            return h - self.targets
        along = (h * self.targets).sum(dim=1, keepdim=True).detach()
        direction: Tensor = h / h.norm(dim=1, keepdim=True).clamp_min(1e-20)
        return direction * torch.where(along < 0, -1.0, 1.0) - self.targets
