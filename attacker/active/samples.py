"""The samples of a batch: every worker's groups put together by what one worker, and then another, told.

Equal rows of the worker that tells are told alike, so whose are whose at the others stays open. What is certain is
taken out, and among what is left another worker tells.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacker.active.line import Groups
from attacker.active.link import Slots, crossed, linked


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
    """The samples of a batch, in no order."""

    groups: Tensor
    """(samples, workers): the group of each, -1 where that is not certain."""
    one: Tensor
    """Whether a sample is of the one class."""
    sure: Tensor
    """Whether all its groups are certain to be of one sample."""

    def left_of(self, worker: int, own: Groups) -> Groups:
        """Return a worker's groups with those rows that no certain sample has."""
        of = self.groups[self.sure, worker]
        counts, ones = (own.counts.clone(), own.ones.clone())
        counts.index_add_(0, of, torch.full_like(of, -1))
        ones.index_add_(0, of, -self.one[self.sure].long())
        return replace(own, counts=counts, ones=ones)


def nobody(workers: int) -> Samples:
    """Return no samples of so many workers."""
    return Samples(torch.zeros(0, workers, dtype=torch.int64), *(torch.zeros(0, dtype=torch.bool),) * 2)


def put_together(groups: Sequence[Groups], before: Samples, told: Told) -> Samples:
    """Return the samples that were certain before, and the others as far as what another worker told goes."""
    sure = Samples(before.groups[before.sure], before.one[before.sure], before.sure[before.sure])
    return _joined(sure, _next(sure, groups, told))


def _next(sure: Samples, groups: Sequence[Groups], told: Told) -> Samples:
    """Return the samples that are left when the certain ones are gone, as another worker's telling has them."""
    left = [sure.left_of(worker, own) for worker, own in enumerate(groups)]
    slots = Slots.of(left[told.teller], told.shares, told.slack)
    known = sure.groups[:, told.teller]
    links = []
    for worker, own in enumerate(left):
        of = sure.groups[:, worker]
        sums = told.sums[worker].index_add(0, of, -told.shares[known])
        extra = torch.zeros_like(sums).index_add(0, of, told.slack[known].square())
        links.append(slots.group if worker == told.teller else linked(slots, own, sums, extra))
    found = torch.stack(links, dim=1)
    return Samples(found, slots.one, (found >= 0).all(dim=1) & ~crossed(slots, found))


def _joined(first: Samples, second: Samples) -> Samples:
    pairs = ((first.groups, second.groups), (first.one, second.one), (first.sure, second.sure))
    return Samples(*(torch.cat(pair) for pair in pairs))
