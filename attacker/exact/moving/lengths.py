"""One round by itself: the lengths of a batch's h from its directions and the gradient of the bias, and every v."""

import torch
from torch import Tensor

from attacker.exact.factors import Factors

INSIDE = 0.5
"""A direction with a larger share outside of the round's space has no part in it."""


def take_apart(factors: Factors, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lengths (k,) of a batch's directions (k, inputs) and their v (k, outputs); NaN if not in it."""
    k, outputs = len(directions), len(factors.right)
    lengths = directions.new_full((k,), torch.nan)
    v = directions.new_full((k, outputs), torch.nan)
    inside = directions @ factors.left  # (k, rank)
    there = (inside.norm(dim=1) > (1 - INSIDE**2) ** 0.5).nonzero()[:, 0]
    if factors.bias is None or len(there) == 0:
        return lengths, v
    dual = torch.linalg.pinv(inside[there].T, rtol=1e-10)
    rows = dual @ (factors.sigma[:, None] * factors.right.T) * factors.size  # length times v
    size = rows.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    unit = rows / size[:, None]
    inverse = torch.linalg.lstsq(unit.T, (factors.bias * factors.size)[:, None], rcond=1e-9, driver="gelsd").solution
    found = inverse[:, 0] / size
    lengths[there] = 1 / found
    v[there] = rows * found[:, None]
    return lengths, v
