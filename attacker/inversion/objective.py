"""How far the representations of a chunk of samples are from their targets."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.inversion.pooling import SoftenedPooling
from vfl.models.layers import representation


@dataclass(frozen=True)
class Objective:
    """h(x) = h for a chunk: each sample's error is relative to the length of its own target."""

    model: nn.Module
    layer: str
    targets: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, model: nn.Module, layer: str, targets: Tensor) -> "Objective":
        """Build it; a target of zeros is measured absolutely."""
        lengths = targets.norm(dim=1)
        return cls(model, layer, targets, torch.where(lengths > 0, lengths, torch.ones_like(lengths)))

    def rows(self, index: Tensor) -> "Objective":
        """Return the objective of some of the samples."""
        return Objective(self.model, self.layer, self.targets[index], self.lengths[index])

    def errors(self, x: Tensor, sharpness: float) -> Tensor:
        """Return (h(x) - h) / |h|, differentiable, max-pooling's gradient softened."""
        with SoftenedPooling(sharpness):
            h = representation(self.model, self.layer, x)
        return (h - self.targets) / self.lengths[:, None]

    def residuals(self, x: Tensor) -> Tensor:
        """Return |h(x) - h| / |h| of each sample."""
        with torch.no_grad():
            h = representation(self.model, self.layer, x)
        residuals: Tensor = (h - self.targets).norm(dim=1) / self.lengths
        return residuals
