"""How far the representations of a chunk of samples are from their targets."""

import contextlib
import copy
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from attacker.inversion.coarse import CoarseGradients, faster
from attacker.inversion.pooling import Sharpness, SoftenedPooling
from vfl.models.layers import representation


class Goal(Protocol):
    """What a search and the way down need of a problem: errors of each sample, relative, and those of some samples."""

    def rows(self, index: Tensor) -> "Goal":
        """Return the same for some of the samples."""

    def errors(self, x: Tensor, sharpness: Sharpness) -> Tensor:
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
    dtype: torch.dtype = torch.float32
    """What the model computes in."""

    @classmethod
    def of(cls, model: nn.Module, layer: str, targets: Tensor, unit: bool = False) -> "Objective":
        """Build it; a target of zeros is measured absolutely."""
        lengths = targets.norm(dim=1)
        return cls(model, layer, targets, torch.where(lengths > 0, lengths, torch.ones_like(lengths)), unit)

    def rows(self, index: Tensor) -> "Objective":
        """Return the objective of some of the samples."""
        return replace(self, targets=self.targets[index], lengths=self.lengths[index])

    def errors(self, x: Tensor, sharpness: Sharpness) -> Tensor:
        """Return (h(x) - h) / |h|, differentiable, max-pooling's gradient softened."""
        with SoftenedPooling(sharpness), CoarseGradients():
            h = representation(self.model, self.layer, x.to(self.dtype)).float()
        return self._apart(h) / self.lengths[:, None]

    def residuals(self, x: Tensor) -> Tensor:
        """Return |h(x) - h| / |h| of each sample."""
        with torch.no_grad():
            h = representation(self.model, self.layer, x.to(self.dtype)).float()
        residuals: Tensor = self._apart(h).norm(dim=1) / self.lengths
        return residuals

    def _apart(self, h: Tensor) -> Tensor:
        if not self.unit:
            return h - self.targets
        along = (h * self.targets).sum(dim=1, keepdim=True).detach()
        direction: Tensor = h / h.norm(dim=1, keepdim=True).clamp_min(1e-20)
        return direction * torch.where(along < 0, -1.0, 1.0) - self.targets


ROUGH = 0.02
"""How far representations in bfloat16 may be off, relative; models that are further off are searched in float32."""


@torch.no_grad()
def roughly(goal: Goal, x: Tensor) -> Goal:
    """Return the same goal in bfloat16 where this processor is made for it: a search need not see the last digits.

    A model whose own code insists on float32, or that loses too much, keeps its digits.
    """
    if not isinstance(goal, Objective) or x.dim() != 4 or x.device.type != "cpu" or not faster():
        return goal
    rough = replace(goal, model=copy.deepcopy(goal.model).bfloat16(), dtype=torch.bfloat16)
    with contextlib.suppress(RuntimeError):
        here = representation(goal.model, goal.layer, x[:4])
        there = representation(rough.model, goal.layer, x[:4].bfloat16())
        if float((there - here).norm()) <= ROUGH * float(here.norm()):
            return rough
    return goal


@torch.no_grad()
def lay_out(model: nn.Module, layer: str, like: Tensor) -> torch.memory_format:
    """Return how images lie in memory for the model to be fast, once its weights lie the same way.

    That is channels last, unless the model's own code relies on torch's usual order.
    """
    if like.dim() != 4:
        return torch.contiguous_format
    probe = torch.linspace(0, 1, like[:2].numel(), device=like.device).view_as(like[:2])
    usual = representation(model, layer, probe)
    _lay(model, torch.channels_last)
    with contextlib.suppress(RuntimeError):  # of a model that looks at its activations with .view
        other = representation(model, layer, probe.contiguous(memory_format=torch.channels_last))
        if torch.allclose(other, usual, rtol=1e-3, atol=1e-5 * float(usual.abs().max())):
            return torch.channels_last
    _lay(model, torch.contiguous_format)
    return torch.contiguous_format


def _lay(model: nn.Module, layout: torch.memory_format) -> None:
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)
