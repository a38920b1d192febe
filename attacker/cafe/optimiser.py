"""Optimisers of variables with a row a sample: a batch updates its own rows and leaves all others as they are."""

import math
from typing import Literal, Protocol

import torch
from torch import Tensor

Name = Literal["sgd", "scaled_sgd", "adam"]


class RowOptimiser(Protocol):
    """Moves some rows of a variable against their gradient."""

    def step(self, values: Tensor, rows: Tensor, gradient: Tensor, lr: float, curvature: float) -> None:
        """Update values[rows] in place; `curvature` is the largest of the objective's second derivatives."""


class RowSGD:
    """Plain gradient descent; scaled, with its learning rate in units of the step that reaches a batch's minimum.

    Scaled by the curvature, a rate of 1 on step I is Kaczmarz's method, which solves one batch's equation at a time;
    every rate below 2 is stable, whatever the batch's size and the gradients'.
    """

    def __init__(self, scaled: bool) -> None:
        self._scaled = scaled

    def step(self, values: Tensor, rows: Tensor, gradient: Tensor, lr: float, curvature: float) -> None:
        """Update values[rows] in place."""
        if self._scaled:
            if not curvature > 0.0:
                return
            lr = lr / curvature
        values.index_add_(0, rows, gradient, alpha=-lr)


class RowAdam:
    """Adam (Kingma and Ba 2015) with moments and step counts per row, as samples come up at different rounds."""

    def __init__(self, like: Tensor, betas: tuple[float, float], epsilon: float) -> None:
        self._betas, self._epsilon = betas, epsilon
        self.first = torch.zeros_like(like)
        self.second = torch.zeros_like(like)
        self.counts = torch.zeros(len(like), dtype=torch.float64)

    def step(self, values: Tensor, rows: Tensor, gradient: Tensor, lr: float, curvature: float = 0.0) -> None:  # noqa: ARG002
        """Update values[rows] in place, with the bias correction of each row's own count."""
        b1, b2 = self._betas
        self.counts[rows.cpu()] += 1
        counts = self.counts[rows.cpu()]
        first = self.first[rows].lerp_(gradient, 1 - b1)
        second = self.second[rows].mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        self.first[rows], self.second[rows] = first, second
        column = (-1, *[1] * (values.dim() - 1))
        size = (lr / (1 - b1**counts)).to(values).reshape(column)
        root = (1 - b2**counts).sqrt().to(values).reshape(column)
        values.index_add_(0, rows, -size * first / second.sqrt_().div_(root).add_(self._epsilon))


def optimiser_for(name: Name, like: Tensor, betas: tuple[float, float], epsilon: float) -> RowOptimiser:
    """Build the optimiser of one variable."""
    return RowAdam(like, betas, epsilon) if name == "adam" else RowSGD(scaled=name == "scaled_sgd")


def cosine(lr: float, final: float, share: float) -> float:
    """Return the learning rate after this share of a step's rounds, falling to `final` of the first along a cosine."""
    return lr * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(max(share, 0.0), 1.0))))
