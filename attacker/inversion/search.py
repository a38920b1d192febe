"""The search for the right basin: annealed Adam that starts smooth and soft and ends at the true problem."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.inversion.objective import Goal
from attacker.inversion.values import is_image
from vfl.maths.adam import Adam
from vfl.maths.variation import ACROSS, DOWN, differences

BETAS = (0.7, 0.9)
"""Shorter memories than Adam's usual: the problem changes under it, and it takes tens of steps, not thousands."""
COLOUR = 2.0
"""Weight of rough colours beside rough brightness: wrong minima of photographs show as coloured noise in textures."""


@dataclass(frozen=True)
class Anneal:
    """How one search runs."""

    steps: int
    learning_rate: float
    smoothness: float
    sharpness: float


def search(objective: Goal, x: Tensor, anneal: Anneal, tick: Callable[[], None]) -> Tensor:
    """Return where annealed Adam gets to from x."""
    adam = Adam(BETAS)
    for step in range(anneal.steps):
        tick()
        left = 1 - step / anneal.steps
        x = x.detach().requires_grad_()
        loss = objective.errors(x, anneal.sharpness / left).square().sum()
        loss = loss + anneal.smoothness * left**2 * roughness(x).sum()
        (gradient,) = torch.autograd.grad(loss, x)
        rate = anneal.learning_rate * (1 + math.cos(math.pi * (1 - left))) / 2
        mean, size = adam(gradient)
        x = x.detach() - rate * (mean / (size + 1e-12))
    return x.detach()


def roughness(x: Tensor) -> Tensor:
    """Return each image's mean absolute difference of neighbours, that of its colours added.

    Zero for tables, whose columns have no order.
    """
    if not is_image(x):
        return x.new_zeros(len(x))
    rough = _differences(x)
    if x.shape[1] > 1:
        rough = rough + COLOUR * _differences(x - x.mean(1, keepdim=True))
    return rough


def _differences(x: Tensor) -> Tensor:
    across, down = differences(x, ACROSS).flatten(1), differences(x, DOWN).flatten(1)
    return across.sum(1) / max(1, across.shape[1]) + down.sum(1) / max(1, down.shape[1])
