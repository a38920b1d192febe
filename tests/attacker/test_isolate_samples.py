"""Rows of several workers put together by what each worker, in turn, told of its own."""

from dataclasses import replace

import pytest
import torch

from attacker.active.line import Groups
from attacker.active.samples import Told, put_together

SLACK = 1e-5


@pytest.fixture(scope="module")
def batch():
    """Sixty samples of three workers, many of whose rows are equal: who has which, the class, the groups of rows."""
    random = torch.Generator().manual_seed(0)
    rows = [torch.arange(60) for _ in range(3)]
    rows[0][:9], rows[0][9:12] = 0, 9
    rows[1][30:45], rows[1][45:60], rows[1][3:12] = 30, 45, 3
    rows[2][50:], rows[2][5:7] = 50, 5
    one = torch.rand(60, generator=random) < 0.4
    of = [own.unique(return_inverse=True)[1] for own in rows]
    return of, one, [_groups(own, one) for own in of]


def _groups(of, one):
    counts, ones = of.bincount(), torch.zeros(int(of.max()) + 1, dtype=torch.int64).index_add(0, of, one.long())
    x = torch.rand(len(counts), 4, dtype=torch.float64)
    return Groups(x, counts, ones, torch.zeros_like(x), torch.ones(len(counts)))


def _told(batch, teller, measurements=3, error=0.0):
    of, _, groups = batch
    random = torch.Generator().manual_seed(teller)
    shares = torch.rand(len(groups[teller]), measurements, generator=random, dtype=torch.float64)
    noise = torch.rand(60, measurements, generator=random, dtype=torch.float64) - 0.5
    each = shares[of[teller]] + error + SLACK * noise
    sums = []
    for own, rows in zip(groups, of, strict=True):
        sums.append(torch.zeros(len(own), measurements, dtype=torch.float64).index_add(0, rows, each))
    return Told(teller, shares, torch.full_like(shares, SLACK), tuple(sums))


def _true(batch):
    return {(*rows, one) for *rows, one in zip(*(own.tolist() for own in batch[0]), batch[1].tolist(), strict=True)}


def _found(samples):
    return [(*rows, one) for rows, one in zip(samples.groups.tolist(), samples.one.tolist(), strict=True)]


def test_a_row_that_is_alone_shows_which_of_many_equal_rows_are_its_samples(batch):
    everything = put_together(batch[2], [_told(batch, teller) for teller in range(3)])
    assert set(_found(everything)) <= _true(batch)
    alone = [torch.stack([own[row].eq(own).sum() == 1 for own in batch[0]]).any() for row in range(60)]
    assert sum(map(int, alone)) == 58  # two have no row of their own anywhere, and are those that nobody else is
    assert len(everything.groups) == 60
    assert [int(everything.left_of(worker, own).abs().sum()) for worker, own in enumerate(batch[2])] == [0, 0, 0]


def test_what_was_not_told_is_open(batch):
    some = put_together(batch[2], [_told(batch, 1)])
    assert len(some.groups) == 0
    two = put_together(batch[2], [_told(batch, 1), _told(batch, 0)])
    assert 45 <= len(two.groups) < 58
    assert set(_found(two)) <= _true(batch)


@pytest.mark.parametrize("slack", [SLACK, 0.05], ids=["sums of nobody", "sums that several groups may make"])
def test_shares_that_fit_nobody_or_may_fit_several_show_nothing(batch, slack):
    told = [_told(batch, teller, error=0.01 if slack == SLACK else 0.0) for teller in range(3)]
    told = [replace(one, slack=torch.full_like(one.slack, slack)) for one in told]
    assert len(put_together(batch[2], told).groups) == 0


def test_samples_whose_rows_contradict_each_other_count_for_nothing(batch):
    of, one, groups = batch
    alone = torch.stack([own.bincount()[own] == 1 for own in of]).all(dim=0)
    two = (alone & one).nonzero().flatten()[:2]
    told = [_told(batch, teller) for teller in range(3)]
    sums = [own.clone() for own in told[2].sums]
    sums[0][of[0][two]] = sums[0][of[0][two.flip(0)]]  # worker 2 told of them, and each was seen as the other
    swapped = put_together(groups, [*told[:2], replace(told[2], sums=tuple(sums))])
    found = set(_found(swapped))
    assert found <= _true(batch)
    assert not found & {(*(int(own[row]) for own in of), True) for row in two}
    assert len(found) >= 50


def test_a_row_is_the_mean_of_what_was_seen_of_it_by_how_much_that_was():
    x = torch.ones(2, 3, dtype=torch.float64)
    groups = Groups(x, torch.tensor([21, 1]), torch.tensor([13, 0]), torch.zeros_like(x), torch.tensor([0.03, 0.4]))
    again = groups.seen_again(torch.tensor([0]), 1.001 * x[:1], torch.tensor([0.4]))
    torch.testing.assert_close(again.x[0], torch.full((3,), 1 + 1e-3 * 0.16 / 0.1609, dtype=torch.float64))
    assert again.x[1].tolist() == [1, 1, 1]
    assert float(again.error[0]) < float(groups.error[0]) / 10
