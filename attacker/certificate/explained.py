"""How badly recovered samples explain one round's gradients, with what the network itself makes of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attacker.certificate.network import Pass
from vfl.maths.factors import Factors

ROUNDING = 2e-7
"""The share of a gradient that float32's rounding may be."""


def own_parts(h: Tensor, v: Tensor, size: int) -> Tensor:
    """Return the size of each sample's own part of a layer's gradient."""
    parts: Tensor = h.norm(dim=1).double() * v.norm(dim=1).double() / size
    return parts


def alone(factors: Factors, h: Tensor, v: Tensor) -> Tensor:
    """Return how far each h v^T is from a piece of the gradient's: h and v in its spaces, and v^T G^+ h = 1.

    Taking such a piece out lowers the rank by one (Wedderburn 1934), whatever the other samples are: a wrong one spoils
    no other's.
    """
    if factors.rank == 0:
        return torch.full((len(h),), torch.inf, dtype=torch.float64)
    h, v = h.double(), v.double()
    inside, across = h @ factors.left, v @ factors.right
    away_h = (h - inside @ factors.left.T).norm(dim=1) / h.norm(dim=1)
    away_v = (v - across @ factors.right.T).norm(dim=1) / v.norm(dim=1)
    piece = ((inside / factors.sigma * across).sum(dim=1) / factors.size - 1).abs()
    return torch.stack([away_h, away_v, piece]).amax(dim=0).nan_to_num(torch.inf)


def applies(factors: Factors) -> bool:
    """Tell whether samples can be seen alone: a gradient of full rank, with more samples than that, shows mixtures."""
    return factors.rank == factors.size or factors.rank < min(len(factors.left), len(factors.right))


def together(rest: Sequence[Tensor], passed: Pass, size: int) -> list[Tensor]:
    """Return what a whole batch leaves of each worker's gradients, and of the top model's in the worker's units.

    `rest` is what is left of each party's gradient, the top model's last; a sample's part of that is about |z| |u|.
    """
    *workers, top = [one.norm() for one in rest]
    parts = [own_parts(h, v, size) for h, v in zip(passed.h, passed.v, strict=True)]
    of_top = own_parts(torch.cat(passed.z, dim=1), passed.u, size).clamp_min(1e-300)
    return [torch.maximum(own, top * (part / of_top).median()) for own, part in zip(workers, parts, strict=True)]


def left_over(factors: Factors, h: Tensor, v: Tensor, others: int) -> Tensor:
    """Return what samples leave of a layer's gradient beyond what as many other samples could explain.

    Each of the others adds one to the rank, so the largest singular values are theirs.
    """
    if 2 * others > min(len(factors.left), len(factors.right)):
        return torch.tensor(torch.inf, dtype=torch.float64)
    left = torch.cat([factors.left * factors.sigma, -h.double().T / factors.size], dim=1)
    right = torch.cat([factors.right, v.double().T], dim=1)
    tall, wide = (torch.linalg.qr(side).R if len(side) > side.shape[1] else side for side in (left, right))
    values = torch.linalg.svdvals(tall @ wide.T)
    rest: Tensor = values[others:].norm()
    return rest
