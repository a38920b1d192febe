"""How badly a pair (h, v) explains its layer's gradients: what steps I and II, and their methods, are compared by."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vfl.maths.factors import Factors

UNSURE = 1e-2
"""A residual above this is no evidence: cells that did not come apart, samples that hide behind others."""


def residuals(batches: Sequence[Tensor], factors: Sequence[Factors], h: Tensor, v: Tensor) -> Tensor:
    """Return each sample's worst relative residual over its rounds (samples,); NaN where h is unknown.

    In a round the pair passes if the whole batch is explained, or if taking h v^T out of the gradient lowers its
    rank by one. The second does not depend on the others: a wrong sample spoils no residual but its own.
    """
    worst = torch.full((len(h),), -1.0, dtype=torch.float64)
    known = h.isfinite().all(dim=1)
    for batch, own in zip(batches, factors, strict=True):
        here = batch[known[batch]]
        if len(here) == 0:
            continue
        residual = _rank_one(own, h[here], v[here])
        if len(here) == len(batch) and bool(v[here].isfinite().all()):
            residual = torch.minimum(residual, _whole(own, h[here], v[here]))
        worst[here] = torch.maximum(worst[here], residual)
    worst[~known] = torch.nan
    return worst


def _rank_one(factors: Factors, h: Tensor, v: Tensor) -> Tensor:
    """Return how far each pair is from a rank-one piece of the gradient: h and v in its spaces, and v^T G^+ h = 1."""
    if factors.rank == 0:
        return h.new_ones(len(h))
    inside, outside = h @ factors.left, v @ factors.right
    away_h = (h - inside @ factors.left.T).norm(dim=1) / h.norm(dim=1)
    away_v = (v - outside @ factors.right.T).norm(dim=1) / v.norm(dim=1)
    piece = ((inside / factors.sigma * outside).sum(dim=1) / factors.size - 1).abs()
    both = torch.maximum(torch.maximum(away_h, away_v), piece)
    # Identical slices that no batch parts have an h but no v of their own: only h can be held against the gradient
    return torch.where(both.isnan(), away_h, both)


def _whole(factors: Factors, h: Tensor, v: Tensor) -> Tensor:
    """Return what all the batch's pairs together leave unexplained, relative to each pair's own part."""
    rest = (factors.left * factors.sigma) @ factors.right.T - h.T @ v / factors.size
    unexplained: Tensor = rest.norm() * factors.size / (h.norm(dim=1) * v.norm(dim=1))
    return unexplained
