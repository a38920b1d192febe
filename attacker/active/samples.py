"""The samples of a batch: every worker's groups put together by what each worker, in turn, told of its own.

A worker's output moves the share of one class in a way that the attack has chosen, another in every measurement. What
flows back to a row of any other worker is that share (less 1 for rows of the one class). So a row that is alone at
another worker shows which of the telling worker's groups its sample is in, however many samples that group has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.active.line import Groups

DOUBT = 1e-3
"""How many groups may fit by chance, on average, for one that fits to be believed."""


@dataclass(frozen=True)
class Told:
    """What one worker told in some measurements, and what came back at the others."""

    teller: int
    shares: Tensor
    """(groups of the teller, measurements): the share that each makes."""
    slack: Tensor
    """Likewise: how far off that may be."""
    sums: tuple[Tensor, ...]
    """By worker, (groups, measurements): the sum of the shares of a group's samples, NaN where it was not seen."""


@dataclass(frozen=True)
class Samples:
    """The samples of a batch that are certain, in no order, and which rows show whose they are."""

    groups: Tensor
    """(samples, workers): the group of each."""
    one: Tensor
    """Whether a sample is of the one class."""
    shown: dict[tuple[int, int], Tensor]
    """By worker that told and worker: for each group of the latter that of the former, -1 where it is not certain."""

    def left_of(self, worker: int, own: Groups) -> Tensor:
        """Return how many rows of each of a worker's groups no certain sample has."""
        return own.counts - self.groups[:, worker].bincount(minlength=len(own))

    def open_rows(self, worker: int, own: Groups) -> Tensor:
        """Return a worker's rows that some sample may still have: these are to be told apart; all if there are none."""
        is_open = self.left_of(worker, own) > 0
        return own.x[is_open] if bool(is_open.any()) else own.x


def put_together(groups: Sequence[Groups], told: Sequence[Told]) -> Samples:
    """Return the samples of which a row, alone at its worker, shows the groups at all others."""
    shown = {
        (one.teller, worker): shown_by(groups[one.teller], own, one, worker)
        for one in told
        for worker, own in enumerate(groups)
        if worker != one.teller
    }
    rows, ones = torch.zeros(0, len(groups), dtype=torch.int64), torch.zeros(0, dtype=torch.bool)
    for anchor in sorted(range(len(groups)), key=lambda worker: -len(groups[worker])):
        own = groups[anchor]
        unknown = torch.full((len(own),), -1, dtype=torch.int64)
        columns = [shown.get((worker, anchor), unknown) for worker in range(len(groups))]
        columns[anchor] = torch.arange(len(own))
        found, free = torch.stack(columns, dim=1), own.counts - rows[:, anchor].bincount(minlength=len(own))
        new = (found >= 0).all(dim=1) & (free > 0) & ((own.counts == 1) | (len(groups) == 1))
        times = own.counts[new] if len(groups) == 1 else torch.ones(int(new.sum()), dtype=torch.int64)
        rows = torch.cat([rows, found[new].repeat_interleave(times, dim=0)])
        ones = torch.cat([ones, _ones(own, new, times)])
    sure = _agree(rows, shown)
    for worker, own in enumerate(groups):  # more samples than rows: something does not hold
        sure &= (rows[:, worker].bincount(minlength=len(own)) <= own.counts)[rows[:, worker]]
    last, one = _last(groups, rows[sure], ones[sure])
    return Samples(torch.cat([rows[sure], last]), torch.cat([ones[sure], one]), shown)


def _agree(rows: Tensor, shown: dict[tuple[int, int], Tensor]) -> Tensor:
    """Tell which samples have no row, alone at its worker, that shows another group than theirs."""
    agree = torch.ones(len(rows), dtype=torch.bool)
    for (teller, worker), own in shown.items():
        says = own[rows[:, worker]]
        agree &= (says < 0) | (says == rows[:, teller])
    return agree


def _last(groups: Sequence[Groups], rows: Tensor, ones: Tensor) -> tuple[Tensor, Tensor]:
    """Return the samples that nobody else can be: of those left, all but one worker have rows of one group alone."""
    left = [own.counts - rows[:, worker].bincount(minlength=len(own)) for worker, own in enumerate(groups)]
    several = [worker for worker, counts in enumerate(left) if int((counts > 0).sum()) > 1]
    if len(several) > 1 or not bool((left[0] > 0).any()):
        return rows[:0], ones[:0]
    which = several[0] if several else 0
    own, there = groups[which], left[which] > 0
    of_one = own.ones - rows[ones, which].bincount(minlength=len(own))
    place = torch.arange(len(own))[there].repeat_interleave(left[which][there])
    columns = [torch.full_like(place, int(counts.argmax())) for counts in left]
    columns[which] = place
    first = (place.bincount(minlength=len(own)).cumsum(0) - left[which])[place]
    return torch.stack(columns, dim=1), torch.arange(len(place)) - first < of_one[place]


def _ones(own: Groups, new: Tensor, times: Tensor) -> Tensor:
    first = (times.cumsum(0) - times).repeat_interleave(times)
    return (torch.arange(int(times.sum())) - first) < own.ones[new].repeat_interleave(times)


def shown_by(teller: Groups, own: Groups, told: Told, worker: int) -> Tensor:
    """Return for each group of a worker the teller's group that it shows, -1 for several rows or where it is open."""
    found, sums = torch.full((len(own),), -1, dtype=torch.int64), told.sums[worker]
    others = teller.counts - teller.ones
    for place in ((own.counts == 1) & ~sums.isnan().all(dim=1)).nonzero().flatten().tolist():
        seen = ~sums[place].isnan()
        slack = told.slack[:, seen]
        able = (teller.ones if bool(own.ones[place]) else others) > 0
        if float((2 * slack[able]).prod(dim=1).sum()) > DOUBT:
            continue
        fits = (((told.shares[:, seen] - sums[place, seen]).abs() < slack).all(dim=1) & able).nonzero().flatten()
        if len(fits) == 1:
            found[place] = fits[0]
    return found
