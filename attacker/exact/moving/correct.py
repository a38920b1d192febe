"""Each sample's h in one round, from all its rounds: as if nothing moved, then with the moves known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.exact.moving.trail import Trail
from attacker.exact.steps12.factors import Factors
from vfl.maths.subspaces import beyond

OUTLIER = 3.0
"""A round whose distance is so many times the median, and `FAR`, has no part of the sample: its v was zero there."""
FAR = 0.02


@dataclass(frozen=True)
class Where:
    """Which rounds each sample is in."""

    rounds: tuple[tuple[int, ...], ...]
    base: tuple[int, ...]
    """For each sample the round that it is recovered from."""

    @classmethod
    def of(cls, batches: Sequence[Tensor], samples: int, middle: range) -> "Where":
        """Take each sample's round in the middle, or the one nearest to it."""
        rounds: list[list[int]] = [[] for _ in range(samples)]
        for t, batch in enumerate(batches):
            for n in batch.tolist():
                rounds[n].append(t)
        centre = (middle.start + middle.stop - 1) / 2
        base = [min(own, key=lambda t: (t not in middle, abs(t - centre))) for own in rounds]
        return cls(tuple(map(tuple, rounds)), tuple(base))

    def based(self, t: int) -> list[int]:
        """Return the samples that are recovered from a round."""
        return [n for n, base in enumerate(self.base) if base == t]


class Meetings:
    """What pairs of rounds have to do with each other, each computed once."""

    def __init__(self, trail: Trail) -> None:
        self._bases = [stop.factors.left for stop in trail.stops]
        self._products: dict[tuple[int, int], Tensor] = {}
        self._gaps: dict[tuple[int, int], Tensor] = {}

    def __call__(self, t: int, base: int) -> Tensor:
        """Return basis_t^T basis_b."""
        if (t, base) not in self._products:
            self._products[t, base] = self._bases[t].T @ self._bases[base]
        return self._products[t, base]

    def gap(self, t: int, base: int) -> Tensor:
        """Return basis_b^T (1 - P_t P_t^T) basis_b: how far vectors of the one space are from the other."""
        if (t, base) not in self._gaps:
            product = self(t, base)
            self._gaps[t, base] = torch.eye(product.shape[1], dtype=product.dtype) - product.T @ product
        return self._gaps[t, base]


def unmoved(trail: Trail, where: Where, meetings: Meetings, n: int, base: int) -> Tensor:
    """Return the unit vector of the base round's space that is nearest to all rounds' spaces, as if h stood still."""
    others = [t for t in where.rounds[n] if t != base]
    left = trail.stops[base].factors.left
    if left.shape[1] == 0 or not others:
        return left.new_full((len(left),), torch.nan)
    for _ in range(2):
        gram = sum(
            (meetings(t, base).T @ meetings(t, base) for t in others), left.new_zeros(left.shape[1], left.shape[1])
        )
        coordinates = torch.linalg.eigh(gram)[1][:, -1]
        away = torch.stack([1 - (meetings(t, base) @ coordinates).square().sum() for t in others]).clamp_min(0).sqrt()
        near = [t for t, distance in zip(others, away.tolist(), strict=True) if distance <= _limit(away)]
        if len(near) == len(others):
            break
        others = near
    vector: Tensor = left @ coordinates
    return vector if float(vector.sum()) >= 0 else -vector


def moved(trail: Trail, where: Where, meetings: Meetings, n: int, predicted: Mapping[int, Tensor]) -> Tensor:
    """Return h in the base round: the vector of its space that, moved as the estimate says, is in all other spaces.

    `predicted` has for each of the sample's rounds the estimate's h. The vector h = P c solves, in least squares,
    (1 - P_t P_t^T) (h + move_t) = 0 for all t: linear in c.
    """
    base = where.base[n]
    left = trail.stops[base].factors.left
    size = left.shape[1]
    matrix, right = left.new_zeros(size, size), left.new_zeros(size)
    away = {t: float(outside(trail.stops[t].factors, h[None])) for t, h in predicted.items()}
    limit = _limit(torch.tensor(list(away.values())))
    for t, h in predicted.items():
        if t == base or away[t] > limit:
            continue
        move, meeting = h - predicted[base], meetings(t, base)
        matrix += meetings.gap(t, base)
        right -= left.T @ move - meeting.T @ (trail.stops[t].factors.left.T @ move)
    # Weakly tied to the estimate: the meetings may leave a direction open
    tie = 1e-6 * float(matrix.diagonal().mean()) + torch.finfo(torch.float64).tiny
    matrix.diagonal().add_(tie)
    solved: Tensor = left @ torch.linalg.solve(matrix, right + tie * (left.T @ predicted[base]))
    return solved


def outside(factors: Factors, h: Tensor) -> Tensor:
    """Return the share of vectors (n, inputs) that lies outside of a round's space (n,); all of a vector of zeros."""
    away: Tensor = beyond(factors.left, h).norm(dim=1)
    length = h.norm(dim=1)
    return torch.where(length == 0, torch.ones_like(length), away / length)


def _limit(distances: Tensor) -> float:
    return OUTLIER * float(distances.median()) + FAR
