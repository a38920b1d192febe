"""One round by itself: the lengths of a batch's h from its directions and the gradient of the bias, and every v."""

import torch
from torch import Tensor

from attacker.exact.certificate import UNSURE
from attacker.exact.moving.correct import outside
from attacker.exact.steps12.factors import Factors

OUTSIDE = 0.5
"""A direction with a larger share outside of the round's space has no part in it."""
SAME = 1e-6
"""Directions whose span is flatter than this, relative, are not told apart."""


def lengths_and_v(factors: Factors, directions: Tensor, widest: float = OUTSIDE) -> tuple[Tensor, Tensor]:
    """Return the lengths (k,) of a batch's directions (k, inputs) and their v (k, outputs); NaN if not in it.

    What is left of samples without a direction, or with one that another has too, shows in the others' v and, if it
    were not left out, in their lengths.
    """
    k, outputs = len(directions), len(factors.right)
    lengths = directions.new_full((k,), torch.nan)
    v = directions.new_full((k, outputs), torch.nan)
    inside = directions @ factors.left  # (k, rank)
    there = (inside.norm(dim=1) > (1 - widest**2) ** 0.5).nonzero()[:, 0]
    if factors.bias is None or len(there) == 0:
        return lengths, v
    basis, values, coordinates = torch.linalg.svd(inside[there].T)
    rank = int((values > SAME * values[0]).sum())
    dual = (coordinates[:rank].T / values[:rank]) @ basis[:, :rank].T
    spectrum = factors.sigma[:, None] * factors.right.T
    rows = dual @ spectrum * factors.size  # length times v
    hidden = torch.linalg.qr((basis[:, rank:].T @ spectrum).T).Q
    seen = rows - (rows @ hidden) @ hidden.T
    bias = factors.bias * factors.size
    bias = bias - hidden @ (hidden.T @ bias)
    size = seen.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    unit = seen / size[:, None]
    inverse = torch.linalg.lstsq(unit.T, bias[:, None], rcond=1e-9, driver="gelsd").solution
    found = inverse[:, 0] / size
    lengths[there] = 1 / found
    v[there] = rows * found[:, None]
    return lengths, v


def misfit(factors: Factors, h: Tensor) -> Tensor:
    """Return how far each h (k, inputs) of a batch is from its gradients: outside of the space, or of another length.

    The directions that are far outside are left out of the lengths, so that a wrong sample spoils no other's.
    """
    size = h.norm(dim=1)
    away = outside(factors, h)
    lengths, _ = lengths_and_v(factors, (h / size[:, None]).nan_to_num(0.0), UNSURE)
    return torch.fmax(away, (size / lengths - 1).abs())
