"""Who takes part in which round, who is who, and which of several people are one."""

import torch

from attacker.exact.one_gradient.names import exchangeable
from attacker.exact.one_gradient.people import People
from attacker.exact.one_gradient.presence import namesakes, twins, violations

DRAWN = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)
"""Four rounds, two epochs, of four samples."""


def people(*residuals: tuple[float, float]) -> People:
    """People of two workers whose slices have these residuals; the slices of person n are n."""
    count = len(residuals)
    x = torch.arange(1.0, count + 1)[:, None, None, None].expand(count, 1, 2, 2)
    h = torch.ones(count, 3, dtype=torch.float64)
    labels = torch.arange(count)
    return People((x.clone(), x.clone()), (h.clone(), h.clone()), torch.tensor(residuals), labels, acceptable=1e-3)


def test_a_round_that_has_somebody_speaks_against_samples_that_are_not_in_it_and_the_other_way_round() -> None:
    of = torch.tensor([[1], [0], [-1], [0]], dtype=torch.int8)
    assert violations(of, DRAWN).tolist() == [[1, 0, 2, 1]]


def test_people_whom_the_rounds_leave_one_sample_have_its_name() -> None:
    of = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 1], [0, 0, 0]], dtype=torch.int8)
    possible = violations(of, DRAWN) == 0
    assert possible.tolist() == [[True, True, False, False], [True, False, True, False], [True, False, False, False]]
    assert namesakes(torch.tensor([3, -1, 0, 3, -1])) == [[0, 3]]


def test_samples_whose_people_could_be_mistaken_for_each_other_are_a_group() -> None:
    possible = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    assert exchangeable(torch.tensor([0, 1, 2, -1]), possible, None) == ((0, 1), (2, 3))
    assert exchangeable(torch.tensor([0, 1, 2, -1]), possible, torch.tensor([0, 1, 0, 0])) == ((2, 3),)
    # a ring: none can change with one other alone
    ring = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]], dtype=torch.bool)
    assert exchangeable(torch.tensor([0, 1, 2]), ring, None) == ((0, 1, 2),)


def test_twins_are_like_no_one_else_and_no_round_parts_them() -> None:
    alike = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], dtype=torch.bool)
    of = torch.tensor([[1, 0, 1, -1], [0, 1, 0, 1]], dtype=torch.int8)
    assert twins(alike, of) == [[0, 1]]
    assert twins(torch.ones(4, 4, dtype=torch.bool), torch.zeros(2, 4, dtype=torch.int8)) == []


def test_those_who_become_one_have_the_best_of_their_slices() -> None:
    both = people((1e-5, 0.02), (torch.nan, 1e-6), (1e-5, 1e-5))
    both.labels[0] = -1
    merged, place = both.merged([[0, 1]])
    assert place.tolist() == [0, 0, 1]
    assert merged.x[0][0].unique().tolist() == [1.0]
    assert merged.x[1][0].unique().tolist() == [2.0]
    assert merged.sure.all()
    assert merged.labels.tolist() == [1, 2]


def test_a_slice_that_others_have_too_does_not_tell_who_it_is() -> None:
    some = people((1e-5, 1e-5), (1e-5, 1e-5), (1e-5, 0.5))
    some.x[0][1] = some.x[0][0]
    assert some.distinctive().tolist() == [[False, True], [False, True], [True, False]]
    assert some.alike().sum() == 0
    some.x[1][1] = some.x[1][0]
    assert some.alike().nonzero().tolist() == [[0, 1], [1, 0]]
