"""Steps I and II: their objectives, equations (7) and (8) of the paper, with gradients; what moves the variables."""

import math
from typing import Literal

import torch
from torch import Tensor

from vfl.maths.adam import RowAdam

Name = Literal["sgd", "scaled_sgd", "adam"]


def outputs_objective(v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return F1 of equation (7) for one worker and batch, its gradient for the rows v, and its curvature.

    The batch's v_n add up to the bias's gradient, so all rows have the same gradient.
    """
    residual = v.sum(0) - bias
    return residual.square().sum(), (2 * residual).expand_as(v), 2.0 * len(v)


def inputs_objective(h: Tensor, v: Tensor, weight: Tensor, curved: bool) -> tuple[Tensor, Tensor, float]:
    """Return F2 of equation (8) for one worker and batch, its gradient for the rows h, and, if asked, its curvature.

    The weight's gradient is stored as (outputs, inputs), so that it is the sum of v_n h_n^T.
    """
    residual = torch.addmm(weight, v.T, h, beta=-1)
    curvature = 2 * float(torch.linalg.eigvalsh((v @ v.T).double())[-1]) if curved else 0.0
    flat = residual.flatten()
    return torch.dot(flat, flat), 2 * v @ residual, curvature


class RowSGD:
    """Plain gradient descent on the rows of a batch; all others stay as they are."""

    tensors: dict[str, Tensor] = {}  # noqa: RUF012  (what it remembers: nothing)

    def step(self, values: Tensor, rows: Tensor, gradient: Tensor, lr: float) -> None:
        """Update values[rows] in place."""
        values.index_add_(0, rows, gradient, alpha=-lr)


def optimiser_for(name: Name, like: Tensor, betas: tuple[float, float], epsilon: float) -> RowAdam | RowSGD:
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
