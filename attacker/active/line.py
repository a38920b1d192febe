"""One worker's rows along one direction: what the units of a ReLU layer say of every interval between two thresholds.

All units have the same weights, w, and each a bias of its own, -t: a unit is active for the rows with w . x > t. The
gradients of its weights and bias are then sums over those rows, of a x and of a, where a is what flows back to a row.
The attack has chosen the network behind the layer so that a is SHARE for rows of all classes but one, and SHARE - 1
for rows of that one. The difference of two units is the same sum over the rows between their thresholds.

How many rows that are can be read off the sum of a: n SHARE - m, with m rows of the one class among n. SHARE is the
golden ratio's fraction, from which no multiple up to K is closer to a whole number than 1 / (sqrt(5) K): no two counts
give the same sum, and rounding is far smaller. An interval that is certain to hold one row holds a x and a, so x.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

SHARE = (math.sqrt(5) - 1) / 2
FARTHEST = 1e4
"""Where the first thresholds end, either way."""
NARROWEST = 1e-6
"""The width of an interval that is not divided any further, relative to where it is (or to 1): float32 ends there."""

ROUNDED = 5e-5
"""What float32 leaves, at the least, of a difference of two sums over 1,024 rows, relative to a row's size."""

TWINS = 6e-4
"""How far apart rows are that count as equal, relative to their size."""
TORN, MENDED = 1e-5, 8
"""Intervals up to this width, so measured, are joined with the next where their sums make no sense; so many times."""


@dataclass(frozen=True)
class Groups:
    """Rows that are alone in their interval, or several that no threshold tells apart: equal ones, if all is well."""

    x: Tensor
    counts: Tensor
    ones: Tensor
    """How many of them are of the one class."""
    spread: Tensor
    """How far rows may be from their mean, by column."""
    strength: Tensor
    """How large the sum of a was: next to nothing where rows of the one class make up for the others."""
    rounding: float = ROUNDED

    def __len__(self) -> int:
        return len(self.x)

    def merged(self) -> "Groups":
        """Return the groups with rows that are nearly equal as one: which of them is whose makes no difference."""
        near = torch.cdist(self.x, self.x) < TWINS * self.sizes.unsqueeze(1)
        for _ in range(len(self).bit_length()):  # a chain of near ones is one group
            near = (near.float() @ near.float()) > 0
        of = near.long().argmax(dim=1).unique(return_inverse=True)[1]
        counts, ones = (torch.zeros(int(of.max()) + 1, dtype=torch.int64).index_add(0, of, own) for own in self.both)
        x = torch.zeros(len(counts), self.x.shape[1], dtype=torch.float64)
        x = x.index_add(0, of, self.x * self.counts.unsqueeze(1)) / counts.unsqueeze(1)
        off = self.spread + (self.x - x[of]).abs()
        spread = torch.zeros_like(x).scatter_reduce(0, of.unsqueeze(1).expand_as(off), off, "amax")
        strength = torch.full((len(counts),), torch.inf, dtype=torch.float64)
        return Groups(x, counts, ones, spread, strength.scatter_reduce(0, of, self.strength, "amin"))

    def seen_again(self, which: Tensor, x: Tensor, strength: Tensor) -> "Groups":
        """Return the groups with some of their rows as the mean of what they were and what a measurement has."""
        rows, strengths = self.x.clone(), self.strength.clone()
        strengths[which] = (self.strength[which].square() + strength.square()).sqrt()
        weight = (strength / strengths[which]).square().unsqueeze(1)
        rows[which] = (1 - weight) * self.x[which] + weight * x
        return replace(self, x=rows, strength=strengths)

    @property
    def error(self) -> Tensor:
        """Return how well rows are known, relative to their size."""
        return torch.maximum(self.apart, self.rounding / self.strength)

    @property
    def apart(self) -> Tensor:
        """Return how far a group's rows may be from their mean, relative to their size."""
        apart: Tensor = self.spread.norm(dim=1) / self.sizes
        return apart

    def known_along(self, direction: Tensor) -> Tensor:
        """Return how well rows are known along a direction."""
        return self.sizes * self.rounding / self.strength + self.spread @ direction.abs()

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """Return the counts of all rows, and of those of the one class."""
        return self.counts, self.ones

    @property
    def sizes(self) -> Tensor:
        """Return how large rows are, small ones as a tenth of the usual: what an error is relative to."""
        size: Tensor = self.x.norm(dim=1)
        return size.clamp(min=0.1 * float(size.median())) if len(size) else size


class Line:
    """The sums beyond every threshold so far, of one batch of `rows` rows."""

    def __init__(self, direction: Tensor, rows: int) -> None:
        self.direction, self._rows = direction, rows
        self._thresholds = torch.zeros(0, dtype=torch.float64)
        self._beyond = torch.zeros(0, len(direction) + 1, dtype=torch.float64)

    @property
    def tolerance(self) -> float:
        """How far from the sum of two counts a sum of a may be: less than half of what any two counts are apart."""
        return 1 / (5 * self._rows)

    def add(self, thresholds: Tensor, beyond: Tensor) -> None:
        """Take in what some units showed: the sums of a x and, last, of a."""
        both = torch.cat([self._thresholds, thresholds.double()])
        order = both.argsort(stable=True)
        self._thresholds, self._beyond = both[order], torch.cat([self._beyond, beyond])[order]
        for _ in range(MENDED):
            torn = (self._decoded()[0] < 0) & (self._thresholds.diff() < TORN * self._scale())
            if not bool(torn.any()):
                return
            # A row within float32's rounding of two thresholds may be beyond the upper one alone: one of them goes.
            kept = torch.cat([torch.ones(1, dtype=torch.bool), ~torn])
            self._thresholds, self._beyond = self._thresholds[kept], self._beyond[kept]

    def next_thresholds(self, units: int) -> Tensor:
        """Return where so many units tell most apart next: in intervals with several rows, by how many they are."""
        if not len(self._thresholds):
            half = torch.logspace(-3, math.log10(FARTHEST), units // 2, dtype=torch.float64)
            return torch.cat([-half.flip(0), half]).float()
        counts, _, _ = self._decoded()
        several = self._divisible(counts).nonzero().flatten()
        several = several[counts[several].argsort(descending=True, stable=True)]
        chosen: list[Tensor] = []
        left, crowd = units, int(counts[several].sum())
        for place in several.tolist():
            share = min(left, max(1, units * int(counts[place]) // max(crowd, 1)))
            if not share:
                break
            low, high = self._thresholds[place : place + 2].tolist()
            chosen.append(torch.linspace(low, high, share + 2, dtype=torch.float64)[1:-1])
            left -= share
        made = torch.cat(chosen) if chosen else torch.zeros(0, dtype=torch.float64)
        thresholds: Tensor = made.float().unique()
        return thresholds

    @property
    def problem(self) -> str | None:
        """What shows that the sums are not what the chosen parameters make of a batch; None if nothing does."""
        counts, _, _ = self._decoded()
        if bool((counts < 0).any()):
            return f"{int((counts < 0).sum())} of {len(counts)} sums of gradients are no sums of whole rows"
        if int(counts.sum()) != self._rows:
            return f"{int(counts.sum())} of {self._rows} rows are between the first thresholds"
        return None

    @property
    def divided(self) -> bool:
        """Whether every interval with several rows is as narrow as it gets."""
        counts, _, _ = self._decoded()
        return len(self._thresholds) > 0 and not bool(self._divisible(counts).any())

    def groups(self) -> Groups:
        """Return the rows that are alone, and those that cannot be told apart."""
        counts, ones, _ = self._decoded()
        there = (counts == 1) | ((counts > 1) & ~self._divisible(counts))
        sums = self._sums()[there]
        x, strength = sums[:, :-1] / sums[:, -1:], sums[:, -1].abs()
        return Groups(x, counts[there], ones[there], torch.zeros_like(x), strength)

    def _sums(self) -> Tensor:
        return self._beyond[:-1] - self._beyond[1:]

    def _divisible(self, counts: Tensor) -> Tensor:
        return (counts > 1) & (self._thresholds.diff() > NARROWEST * self._scale())

    def _scale(self) -> Tensor:
        """Return of each interval how far out it is, 1 at the least."""
        return torch.maximum(self._thresholds[:-1].abs(), self._thresholds[1:].abs()).clamp(min=1.0)

    def _decoded(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return each interval's rows, -1 where that is not certain, those of the one class, and what is left over."""
        sums = self._sums()[:, -1:]
        if not len(sums):
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0)
        numbers = torch.arange(self._rows + 1, dtype=torch.float64)
        ones = (numbers * SHARE - sums).round()
        left = (numbers * SHARE - ones - sums).abs()
        left[(ones < 0) | (ones > numbers)] = torch.inf
        least, counts = left.min(dim=1)
        ones = ones.gather(1, counts.unsqueeze(1)).squeeze(1).long()
        return torch.where(least < self.tolerance, counts, -1), ones, least
