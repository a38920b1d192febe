"""Which rows of two workers belong to one sample: what one worker tells comes back in the other's gradients.

The first worker's output moves the share of one class in a way that the attack has chosen, another in every
measurement. What flows back to a row of any other worker is that share (less 1 for rows of the one class), so a group
of rows there shows the sum of its samples' shares, and the attack knows the share of every row of the first worker.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.active.line import Groups
from attacker.active.subsets import choices_that_fit

DOUBT = 1e-3
"""How many choices may fit by chance, on average, for one that fits to be believed."""


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


def linked(slots: Slots, groups: Groups, sums: Tensor, extra: Tensor | None = None) -> Tensor:
    """Return for each slot the group of another worker that its sample is in, -1 where that is not certain.

    `sums` has the groups' sums of shares, (groups, measurements), NaN where a measurement does not show one, and
    `extra` the square of how far off they may be besides the slots' own slack.
    """
    found = torch.full((len(slots.group),), -1, dtype=torch.int64)
    loose = torch.zeros_like(sums) if extra is None else extra
    open_groups: list[int] = [place for place in groups.counts.argsort(stable=True).tolist() if groups.counts[place]]
    tried: dict[int, int] = {}
    while True:
        still: list[int] = []
        for place in open_groups:
            free = (found < 0).nonzero().flatten()
            if tried.get(place) == len(free):  # nobody has been placed since
                still.append(place)
                continue
            tried[place] = len(free)
            chosen = _members(slots, free, groups, place=place, sums=sums[place], extra=loose[place])
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


def _members(slots: Slots, free: Tensor, groups: Groups, *, place: int, sums: Tensor, extra: Tensor) -> Tensor | None:
    """Return the free slots that make up a group, if one choice of them fits and no other does."""
    count, ones, seen = int(groups.counts[place]), int(groups.ones[place]), ~sums.isnan()
    if not bool(seen.any()) or count > len(free):
        return None
    shares, slack, wanted, own = slots.shares[free][:, seen], slots.slack[free][:, seen], sums[seen], extra[seen]
    if count == 1:
        loose = slack.square() + own
        if float((2 * loose.sqrt()).prod(dim=1).sum()) > DOUBT:
            return None
        fits = ((shares - wanted).square() < loose).all(dim=1) & (slots.one[free] == bool(ones))
        return _same(slots, free[fits.nonzero()])
    out = len(free) - count  # who is in it, or who of the free ones is not: whichever are fewer
    few, sought, classes = min(count, out), wanted, ones
    if out < count:
        sought, classes = shares.sum(dim=0) - wanted, int(slots.one[free].sum()) - ones
        own = own + slack.square().sum(dim=0)
    if few == 0:
        fits_all = bool((sought.square() < own).all()) and classes == 0
        return free if fits_all else None
    typical = few * slack.square().mean(dim=0) + own
    if _log_choices(len(free), few) + float((2 * typical.sqrt()).log().sum()) > math.log(DOUBT):
        return None
    chosen = choices_that_fit(shares, slack, sought, count=few, extra=own)
    if chosen is None:
        return None
    chosen = chosen[slots.one[free][chosen].sum(dim=1) == classes]
    choice = _same(slots, free[chosen])
    if choice is None or out >= count:
        return choice
    return free[~torch.isin(free, choice)]


def _same(slots: Slots, choices: Tensor) -> Tensor | None:
    """Return the first of several choices of slots if all are of the same groups and classes, in whatever order."""
    if not len(choices):
        return None
    kinds = (2 * slots.group[choices] + slots.one[choices]).sort(dim=1).values
    return choices[0] if bool((kinds == kinds[0]).all()) else None


def _log_choices(among: int, count: int) -> float:
    return math.lgamma(among + 1) - math.lgamma(count + 1) - math.lgamma(among - count + 1)
