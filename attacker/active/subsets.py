"""Which of several numbers make up a sum: all choices of so many that fit, found by putting two halves together."""

import math
from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor

MOST_HALVES = 400_000
"""Choices of one half that are tried."""
MOST_PAIRS = 5_000_000
"""Pairs of halves that may fit in the first number alone."""


def choices_that_fit(values: Tensor, slack: Tensor, wanted: Tensor, *, count: int, extra: Tensor) -> Tensor | None:
    """Return every choice of `count` of the values whose sum is what is wanted; None if there are too many to try.

    `values` has a column for each measurement, `slack` how far off each value may be, `extra` the square of how far
    off the wanted sum itself may be; several errors add up by their squares.
    """
    few = count // 2
    if max(math.comb(len(values), few), math.comb(len(values), count - few)) > MOST_HALVES:
        return None
    small, large = (_choices(len(values), size) for size in (few, count - few))
    close = slack.square()
    reaches = (count * close.amax(dim=0) + extra).sqrt()
    sharp = int((reaches / values.std(dim=0, correction=0).clamp(min=1e-12)).argmin())  # it parts most
    first, order = values[:, sharp][large].sum(dim=1).sort()
    rest, reach = wanted[sharp] - values[:, sharp][small].sum(dim=1), reaches[sharp]
    low = torch.searchsorted(first, rest - reach)
    high = torch.searchsorted(first, rest + reach, right=True)
    if int((high - low).sum()) > MOST_PAIRS:
        return None
    found = [torch.zeros(0, count, dtype=torch.int64)]
    for some, pair in _pairs(low, high):
        chosen = torch.cat([small[some], large[order[pair]]], dim=1)
        for place in range(values.shape[1]):  # most of them go with the first one or two
            loose = close[:, place][chosen].sum(dim=1) + extra[place]
            chosen = chosen[(values[:, place][chosen].sum(dim=1) - wanted[place]).square() < loose]
        chosen = chosen.sort(dim=1).values
        found.append(chosen[(chosen.diff(dim=1) > 0).all(dim=1)])
    every: Tensor = torch.cat(found).unique(dim=0)
    return every


def _pairs(low: Tensor, high: Tensor, at_once: int = 500_000) -> Iterator[tuple[Tensor, Tensor]]:
    """Give for each first half the second ones from `low` to `high`, some at a time."""
    counts = high - low
    ends = counts.cumsum(0)
    begin = 0
    while begin < len(low):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(torch.searchsorted(ends, before + at_once)))
        some = torch.arange(begin, end).repeat_interleave(counts[begin:end])
        offset = torch.arange(len(some)) - (ends[begin:end] - counts[begin:end] - before).repeat_interleave(
            counts[begin:end]
        )
        yield some, low[some] + offset
        begin = end


def _choices(among: int, count: int) -> Tensor:
    made = torch.tensor(list(combinations(range(among), count)), dtype=torch.int64)
    return made.reshape(math.comb(among, count), count)
