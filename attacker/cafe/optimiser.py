"""How variables with a row a sample move: a batch updates its own rows and leaves all others as they are."""

import math
from typing import Literal, Protocol

from torch import Tensor

from vfl.maths.adam import RowAdam

Name = Literal["sgd", "scaled_sgd", "adam"]


class RowOptimiser(Protocol):
    """Moves some rows of a variable against their gradient."""

    def step(self, values: Tensor, rows: Tensor, gradient: Tensor, lr: float) -> None:
        """Update values[rows] in place."""


class RowSGD:
    """Plain gradient descent."""

    def step(self, values: Tensor, rows: Tensor, gradient: Tensor, lr: float) -> None:
        """Update values[rows] in place."""
        values.index_add_(0, rows, gradient, alpha=-lr)


def optimiser_for(name: Name, like: Tensor, betas: tuple[float, float], epsilon: float) -> RowOptimiser:
    """Build the optimiser of one variable."""
    return RowAdam(like, betas, epsilon) if name == "adam" else RowSGD()


def scaled(lr: float, curvature: float) -> float:
    """Return a learning rate that was given in units of the step that reaches a batch's minimum.

    `curvature` is the largest of the objective's second derivatives. A rate of 1 on step I is Kaczmarz's method, which
    solves one batch's equation at a time; every rate below 2 is stable, whatever the batch's size and the gradients'.
    """
    return lr / curvature if curvature > 0.0 else 0.0


def cosine_decay(lr: float, final: float, share: float) -> float:
    """Return the learning rate after this share of a step's rounds, falling to `final` of the first along a cosine."""
    return lr * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(max(share, 0.0), 1.0))))
