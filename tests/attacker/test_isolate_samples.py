"""Rows of several workers put together: choices that fit a sum, and what a second worker that tells is good for."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacker.active.line import Groups
from attacker.active.samples import Told, nobody, put_together
from attacker.active.subsets import choices_that_fit

SLACK = 1e-5


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 3), st.integers(0, 2**31), st.data())
def test_every_choice_that_fits_is_found_and_no_other(among, measurements, seed, data):
    count = data.draw(st.integers(1, among))
    random = torch.Generator().manual_seed(seed)
    values = torch.randint(6, (among, measurements), generator=random).double()  # several choices have one sum
    wanted = values[torch.randperm(among, generator=random)[:count]].sum(dim=0)
    extra = torch.zeros(measurements, dtype=torch.float64)
    found = choices_that_fit(values, torch.full_like(values, SLACK), wanted, count=count, extra=extra)
    every = [
        list(one) for one in combinations(range(among), count) if torch.equal(values[list(one)].sum(dim=0), wanted)
    ]
    assert sorted(found.tolist()) == every


def test_more_choices_than_can_be_tried_are_none():
    values = torch.rand(200, 2, dtype=torch.float64)
    slack, extra = torch.full_like(values, SLACK), torch.zeros(2, dtype=torch.float64)
    assert choices_that_fit(values, slack, values[:40].sum(dim=0), count=40, extra=extra) is None


@pytest.fixture(scope="module")
def batch():
    """Sixty samples of three workers, each with equal rows: who has which, by worker, and the groups of rows."""
    random = torch.Generator().manual_seed(0)
    rows = [torch.arange(60) for _ in range(3)]
    rows[0][:9], rows[0][9:12] = 0, 9
    rows[1][30:36], rows[1][40:55] = 30, 40
    rows[2][50:], rows[2][5:7] = 50, 5
    of = [own.unique(return_inverse=True)[1][torch.randperm(60, generator=random).argsort()] for own in rows]
    one = torch.rand(60, generator=random) < 0.4
    return of, one, [_groups(own, one) for own in of]


def _groups(of, one):
    counts, ones = of.bincount(), torch.zeros(int(of.max()) + 1, dtype=torch.int64).index_add(0, of, one.long())
    return Groups(torch.rand(len(counts), 4, dtype=torch.float64), counts, ones, torch.zeros(len(counts)))


def _told(batch, teller, measurements=5, error=0.0):
    of, _, groups = batch
    random = torch.Generator().manual_seed(teller)
    shares = torch.rand(len(groups[teller]), measurements, generator=random, dtype=torch.float64)
    off = error + 0.3 * SLACK * torch.randn(60, measurements, generator=random, dtype=torch.float64)
    each = shares[of[teller]] + off
    sums = [
        torch.zeros(len(own), measurements, dtype=torch.float64).index_add(0, o, each)
        for own, o in zip(groups, of, strict=True)
    ]
    return Told(teller, shares, torch.full_like(shares, SLACK), tuple(sums))  # fmt: skip


def _wrong(found, batch):
    true = {(*rows, one) for *rows, one in zip(*(own.tolist() for own in batch[0]), batch[1].tolist(), strict=True)}
    sure = zip(found.groups[found.sure].tolist(), found.one[found.sure].tolist(), strict=True)
    return [rows for rows, one in sure if (*rows, one) not in true]


def test_a_second_worker_tells_of_samples_that_are_alike_at_the_first(batch):
    groups = batch[2]
    first = put_together(groups, nobody(3), _told(batch, 0))
    assert 48 <= int(first.sure.sum()) < 55  # of those alike at worker 0 it is open which rows are whose
    second = put_together(groups, first, _told(batch, 2))
    assert int(second.sure.sum()) >= 57
    assert _wrong(first, batch) == _wrong(second, batch) == []
    for worker, own in enumerate(groups):
        left = second.left_of(worker, own)
        assert int(left.counts.sum()) == 60 - int(second.sure.sum())
        assert int(left.counts.min()) >= 0


def test_sums_of_no_samples_make_nobody_certain(batch):
    found = put_together(batch[2], nobody(3), _told(batch, 0, error=0.01))
    assert int(found.sure.sum()) == 0
