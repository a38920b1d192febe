"""Each sample's h in one round: its direction from all its rounds, its length from the round's gradient of the bias."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.exact.moving.trail import Trail
from attacker.exact.steps12.cells import rounds_of_each
from vfl.maths.factors import Factors
from vfl.maths.least_squares import beyond

OUTLIER = 3.0
"""A round whose distance is so many times the median, and `FAR`, has no part of the sample: its v was zero there."""
FAR = 0.02
OUTSIDE = 0.5
"""A direction with a larger share outside of the round's space has no part in it."""
SAME = 1e-6
"""Directions whose span is flatter than this, relative, are not told apart."""


@dataclass(frozen=True)
class Where:
    """Which rounds each sample is in."""

    rounds: tuple[tuple[int, ...], ...]
    base: tuple[int, ...]
    """For each sample the round that it is recovered from."""

    @classmethod
    def of(cls, batches: Sequence[Tensor], samples: int, middle: range) -> "Where":
        """Take each sample's round in the middle, or the one nearest to it."""
        rounds = rounds_of_each(batches, samples)
        centre = (middle.start + middle.stop - 1) / 2
        base = [min(own, key=lambda t: (t not in middle, abs(t - centre))) for own in rounds]
        return cls(tuple(rounds), tuple(base))

    def based(self, t: int) -> list[int]:
        """Return the samples that are recovered from a round."""
        return [n for n, base in enumerate(self.base) if base == t]


class Meetings:
    """What the rounds have to do with each other, each pair computed once, and what that says of a sample's h."""

    def __init__(self, trail: Trail, where: Where) -> None:
        self._where, self._factors = where, [stop.factors for stop in trail.stops]
        self._products: dict[tuple[int, int], Tensor] = {}
        self._gaps: dict[tuple[int, int], Tensor] = {}

    def unmoved(self, n: int, base: int) -> Tensor:
        """Return the unit vector of a round's space nearest to those of the sample's rounds, as if h stood still."""
        others = [t for t in self._where.rounds[n] if t != base]
        left = self._factors[base].left
        if left.shape[1] == 0 or not others:
            return left.new_full((len(left),), torch.nan)
        for _ in range(2):
            products = [self._product(t, base) for t in others]
            gram = sum((one.T @ one for one in products), left.new_zeros(left.shape[1], left.shape[1]))
            coordinates = torch.linalg.eigh(gram)[1][:, -1]
            away = torch.stack([1 - (one @ coordinates).square().sum() for one in products]).clamp_min(0).sqrt()
            near = [t for t, distance in zip(others, away.tolist(), strict=True) if distance <= _limit(away)]
            if len(near) == len(others):
                break
            others = near
        vector: Tensor = left @ coordinates
        return vector if float(vector.sum()) >= 0 else -vector

    def moved(self, n: int, predicted: Mapping[int, Tensor]) -> Tensor:
        """Return h in the base round: the vector of its space that, moved as the estimate says, is in all others.

        `predicted` has for each of the sample's rounds the estimate's h. The vector h = P c solves, in least squares,
        (1 - P_t P_t^T) (h + move_t) = 0 for all t: linear in c.
        """
        base = self._where.base[n]
        left = self._factors[base].left
        size = left.shape[1]
        matrix, right = left.new_zeros(size, size), left.new_zeros(size)
        away = {t: float(outside(self._factors[t], h[None])) for t, h in predicted.items()}
        limit = _limit(torch.tensor(list(away.values())))
        for t, h in predicted.items():
            if t == base or away[t] > limit:
                continue
            move = h - predicted[base]
            matrix += self._gap(t, base)
            right -= left.T @ move - self._product(t, base).T @ (self._factors[t].left.T @ move)
        # Weakly tied to the estimate: the meetings may leave a direction open
        tie = 1e-6 * float(matrix.diagonal().mean()) + torch.finfo(torch.float64).tiny
        matrix.diagonal().add_(tie)
        solved: Tensor = left @ torch.linalg.solve(matrix, right + tie * (left.T @ predicted[base]))
        return solved

    def _product(self, t: int, base: int) -> Tensor:
        """Return basis_t^T basis_b."""
        if (t, base) not in self._products:
            self._products[t, base] = self._factors[t].left.T @ self._factors[base].left
        return self._products[t, base]

    def _gap(self, t: int, base: int) -> Tensor:
        """Return basis_b^T (1 - P_t P_t^T) basis_b: how far vectors of the one space are from the other."""
        if (t, base) not in self._gaps:
            product = self._product(t, base)
            self._gaps[t, base] = torch.eye(product.shape[1], dtype=product.dtype) - product.T @ product
        return self._gaps[t, base]


def outside(factors: Factors, h: Tensor) -> Tensor:
    """Return the share of vectors (n, inputs) that lies outside of a round's space (n,); all of a vector of zeros."""
    away: Tensor = beyond(factors.left, h).norm(dim=1)
    length = h.norm(dim=1)
    return torch.where(length == 0, torch.ones_like(length), away / length)


def _limit(distances: Tensor) -> float:
    return OUTLIER * float(distances.median()) + FAR


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
