"""The objectives of the three steps, equations (7), (8) and (9) of the paper, with their gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor


def outputs_objective(v: Tensor, bias: Tensor) -> tuple[float, Tensor, float]:
    """Return F1 of equation (7) for one worker and batch, its gradient for the rows v, and its curvature.

    The batch's v_n add up to the bias's gradient, so all rows have the same gradient.
    """
    residual = v.sum(0) - bias
    return float(residual.square().sum()), (2 * residual).expand_as(v), 2.0 * len(v)


def inputs_objective(h: Tensor, v: Tensor, weight: Tensor, curved: bool) -> tuple[float, Tensor, float]:
    """Return F2 of equation (8) for one worker and batch, its gradient for the rows h, and, if asked, its curvature.

    The weight's gradient is stored as (outputs, inputs), so that it is the sum of v_n h_n^T.
    """
    residual = torch.addmm(weight, v.T, h, beta=-1)
    curvature = 2 * float(torch.linalg.eigvalsh((v @ v.T).double())[-1]) if curved else 0.0
    return float(residual.square().sum()), 2 * v @ residual, curvature


def gradient_distance(guessed: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
    """Return the first term of equation (9) without alpha: the squared distance over all parameters."""
    return torch.stack([(a - b).square().sum() for a, b in zip(guessed, observed, strict=True)]).sum()


def representation_distance(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """Return the last term of equation (9) without gamma: the squared distance, summed over the batch and workers."""
    return torch.stack([(a - b).square().sum() for a, b in zip(found, wanted, strict=True)]).sum()
