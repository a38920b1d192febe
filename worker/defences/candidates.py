"""Sets of sorted normal numbers, of which few are drawn, and the one of them that is nearest to given tensors.

A candidate holds one sorted sample of n normal numbers for each tensor of n entries. Up to `KNOTS` entries all of it is
drawn. Of a larger one `KNOTS` order statistics are drawn, from their exact distribution (the gaps between uniform order
statistics are gamma distributed); the numbers between two knots lie there as in one full sample that all candidates
share. So a candidate is a linear function of its knots, and what its distance takes is a few sums over the entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from worker.defences.ranks import Floats

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]

KNOTS = 256


class Candidates:
    """So many candidates for tensors of these sizes: normal numbers, or their magnitudes."""

    def __init__(self, sizes: Sequence[int], count: int, magnitudes: bool, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._between = [_between(random, size, magnitudes) for size in sizes]
        self._ends = np.cumsum([0, *(len(one.ranks) for one in self._between)])
        self._knots = np.empty((count, self._ends[-1]), dtype=np.float32)
        self._squares = np.empty((count, len(sizes)))
        for at, (size, between) in enumerate(zip(sizes, self._between, strict=True)):
            knots = _order_statistics(random, count, size, between.ranks, magnitudes).astype(np.float32)
            self._knots[:, self._ends[at] : self._ends[at + 1]] = knots
            self._squares[:, at] = between.squares(knots)

    def nearest(self, scales: Sequence[float], ordered: Sequence[Floats], unit: float) -> int:
        """Return the candidate that, times each tensor's scale, is nearest in L2 to the tensors' ordered entries.

        `unit` is the size of what is compared: squares of small float32 numbers vanish.
        """
        # |s z - g|^2 = s^2 |z|^2 - 2 s z.g + |g|^2, and the last term is the same for all.
        shares = np.array(scales) / unit
        parts = [one.transposed(entries) / unit for one, entries in zip(self._between, ordered, strict=True)]
        weights = np.concatenate([share * part for share, part in zip(shares, parts, strict=True)])
        return int(np.argmin(self._squares @ shares**2 - 2.0 * (self._knots @ weights.astype(np.float32))))

    def curves(self, candidate: int) -> list[Floats]:
        """Return a candidate in full: for each tensor its numbers in ascending order."""
        knots = np.split(self._knots[candidate], self._ends[1:-1])
        return [one.full(part) for one, part in zip(self._between, knots, strict=True)]


@dataclass(frozen=True)
class _Between:
    """Where the numbers between knots lie: a share of the way from the knot below to the one above."""

    ranks: Integers
    counts: Integers
    """How many entries each stretch between two knots has, the knot below among them, and at last the one above."""
    share: Floats | None
    """None where every entry is a knot."""

    def full(self, knots: Floats) -> Floats:
        """Put the numbers between the knots."""
        if self.share is None:
            return knots
        curve: Floats = self.share * np.repeat(np.diff(knots), self.counts)
        curve += np.repeat(knots[:-1], self.counts)
        return curve

    def transposed(self, ordered: Floats) -> Doubles:
        """Return w such that knots.w is the scalar product of the full curve and the entries."""
        if self.share is None:
            return ordered.astype(np.float64)
        above = np.add.reduceat(ordered * self.share, self.ranks[:-1]).astype(np.float64)
        both = np.add.reduceat(ordered, self.ranks[:-1]).astype(np.float64)
        return np.append(both - above, 0.0) + np.append(0.0, above)

    def squares(self, knots: Floats) -> Doubles:
        """Return the squared norm of the full curve, for each row of knots."""
        rows = knots.astype(np.float64)
        if self.share is None:
            return np.square(rows).sum(axis=1)
        share = self.share.astype(np.float64)
        both, above, size = (
            np.add.reduceat(part, self.ranks[:-1]) for part in (share * (1 - share), share**2, np.ones_like(share))
        )
        left, right = rows[:, :-1], rows[:, 1:]
        return left**2 @ (size - 2 * both - above) + 2 * (left * right) @ both + right**2 @ above


def _between(random: np.random.Generator, size: int, magnitudes: bool) -> _Between:
    """Choose the knots' ranks, about equally far apart in value, and draw the shared sample."""
    if size <= KNOTS:
        return _Between(np.arange(size), np.ones(size, dtype=np.int64), None)
    top = float(ndtri(1 - 0.5 / size))
    steps = np.linspace(0.0 if magnitudes else -top, top, KNOTS)
    ranks = np.unique(np.round((size - 1) * _levels(steps, magnitudes)).astype(np.int64))
    ranks[0], ranks[-1] = 0, size - 1
    counts = np.diff(ranks)
    counts[-1] += 1
    sample = np.sort(random.standard_normal(size, dtype=np.float32))
    sample = np.sort(np.abs(sample)) if magnitudes else sample
    low, rise = (np.repeat(part, counts) for part in (sample[ranks[:-1]], np.diff(sample[ranks])))
    share = np.where(rise > 0, (sample - low) / np.where(rise > 0, rise, 1), 0.0)
    return _Between(ranks, counts, share.astype(np.float32))


def _levels(values: Doubles, magnitudes: bool) -> Doubles:
    return np.asarray(2 * ndtr(values) - 1 if magnitudes else ndtr(values))


def _order_statistics(random: np.random.Generator, count: int, size: int, ranks: Integers, magnitudes: bool) -> Doubles:
    """Draw the order statistics of these ranks (from 0) of `size` normal numbers or magnitudes, `count` times."""
    gaps = np.diff(np.concatenate([[-1], ranks, [size]])).astype(np.float64)
    way = np.cumsum(random.standard_gamma(np.broadcast_to(gaps, (count, len(gaps)))), axis=1)
    level = way[:, :-1] / way[:, -1:]
    level = (1 + level) / 2 if magnitudes else level
    return np.asarray(ndtri(np.clip(level, 1e-300, 1 - 2**-53)))
