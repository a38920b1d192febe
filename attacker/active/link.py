"""Which rows of two workers belong to one sample: what one worker tells comes back in the other's gradients.

The first worker's output moves the share of one class in a way that the attack has chosen, another in every
measurement. What flows back to a row of any other worker is that share (less 1 for rows of the one class), so a group
of rows there shows the sum of its samples' shares, and the attack knows the share of every row of the first worker.
"""

from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from attacker.active.line import Groups

DOUBT = 1e-3
"""How many choices may fit by chance, on average, for one that fits to be believed."""
MOST = 300_000
"""Combinations of samples that are tried for a group of several."""


@dataclass
class Slots:
    """The samples of a batch as the first worker's groups make them, each with what it told."""

    group: Tensor
    one: Tensor
    """Whether the sample is of the one class."""
    shares: Tensor
    """(samples, measurements)."""
    slack: Tensor
    """Likewise: how far off the shares may be."""

    @classmethod
    def of(cls, groups: Groups, shares: Tensor, slack: Tensor) -> "Slots":
        """Return a slot for each row of each group."""
        group = torch.arange(len(groups)).repeat_interleave(groups.counts)
        first = groups.counts.cumsum(0) - groups.counts
        place = torch.arange(len(group)) - first[group]
        return cls(group, place < groups.ones[group], shares[group], slack[group])


def linked(slots: Slots, groups: Groups, sums: Tensor) -> Tensor:
    """Return for each slot the group of another worker that its sample is in, -1 where that is not certain.

    `sums` has the groups' sums of shares, (groups, measurements), NaN where a measurement does not show one.
    """
    found = torch.full((len(slots.group),), -1, dtype=torch.int64)
    open_groups: list[int] = groups.counts.argsort(stable=True).tolist()
    while True:
        still: list[int] = []
        for place in open_groups:
            free = (found < 0).nonzero().flatten()
            chosen = _members(slots, free, groups, place=place, sums=sums[place])
            if chosen is None:
                still.append(place)
            else:
                found[chosen] = place
        if len(still) == len(open_groups) or not still:
            break
        open_groups = still
    free = (found < 0).nonzero().flatten()
    if len(still) == 1 and len(free) == int(groups.counts[still[0]]):  # nobody else is left
        found[free] = still[0]
    return found


def crossed(slots: Slots, links: Tensor) -> Tensor:
    """Tell which samples' rows at several other workers may be crossed: the teller's are equal."""
    kinds = (2 * slots.group + slots.one).unique(return_inverse=True)[1]
    may = torch.zeros(len(kinds), dtype=torch.bool)
    for kind in (kinds.bincount() > 1).nonzero().flatten().tolist():
        same = kinds == kind
        may[same] = int((links[same] != links[same][:1]).any(dim=0).sum()) > 1
    return may


def _members(slots: Slots, free: Tensor, groups: Groups, *, place: int, sums: Tensor) -> Tensor | None:
    """Return the free slots that make up a group, if one choice of them fits and no other does."""
    count, ones, seen = int(groups.counts[place]), int(groups.ones[place]), ~sums.isnan()
    if not bool(seen.any()) or count > len(free):
        return None
    shares, slack, wanted = slots.shares[free][:, seen], slots.slack[free][:, seen], sums[seen]
    if count == 1:
        if float((2 * slack).prod(dim=1).sum()) > DOUBT:
            return None
        fits = ((shares - wanted).abs() < slack).all(dim=1) & (slots.one[free] == bool(ones))
        return _same(slots, free[fits.nonzero()])
    out = len(free) - count  # who is in it, or who of the free ones is not: whichever are fewer
    few, sought, classes = min(count, out), wanted, ones
    close = slack.square()
    if out < count:
        sought, classes = shares.sum(dim=0) - wanted, int(slots.one[free].sum()) - ones
    if _choices(len(free), few) > MOST or int(seen.sum()) < 2:
        return None
    chosen = torch.tensor(list(combinations(range(len(free)), few)), dtype=torch.int64)
    chosen = chosen.reshape(_choices(len(free), few), few)
    loose = close[chosen].sum(dim=1) if out >= count else close.sum(dim=0)
    if float((2 * loose.sqrt()).expand(len(chosen), -1).prod(dim=1).sum()) > DOUBT:
        return None
    fits = ((shares[chosen].sum(dim=1) - sought).square() < loose).all(dim=1)
    fits &= slots.one[free][chosen].sum(dim=1) == classes
    choice = _same(slots, free[chosen[fits]])
    if choice is None or out >= count:
        return choice
    return free[~torch.isin(free, choice)]


def _same(slots: Slots, choices: Tensor) -> Tensor | None:
    """Return the first of several choices of slots if all are of the same groups and classes, in whatever order."""
    if not len(choices):
        return None
    kinds = (2 * slots.group[choices] + slots.one[choices]).sort(dim=1).values
    return choices[0] if bool((kinds == kinds[0]).all()) else None


def _choices(among: int, count: int) -> int:
    total = 1
    for step in range(count):
        total = total * (among - step) // (step + 1)
    return total
