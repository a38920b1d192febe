"""Which sample is which: a person is in the rounds that its data fit, a sample in those whose indices have its own."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.exact.one_gradient.people import People
from attacker.exact.one_gradient.presence import violations


@dataclass(frozen=True)
class Names:
    """Who is who, and whose order is arbitrary."""

    person: Tensor
    """(samples,): the person that a sample is, -1 where none was found."""
    cells: tuple[tuple[int, ...], ...]
    batches: Mapping[int, Tensor] | None
    """By round: the samples in it, where that is known of some rounds alone; None where the indices tell it of all."""


def made_up(people: People, inside: Mapping[int, Tensor], samples: int) -> Names:
    """Name people in the order in which they were found, the surest first where there are too many.

    `inside` tells by round who was in it.
    """
    order = (~people.sure).sum(dim=1).argsort(stable=True)[:samples]
    person = torch.full((samples,), -1)
    person[: len(order)] = order
    batches = {number: own[order].nonzero()[:, 0] for number, own in inside.items()}
    return Names(person, (tuple(range(samples)),), batches)


def names_of(
    people: People,
    presence: Tensor,
    batches: Mapping[int, Tensor],
    *,
    samples: int,
    labels: tuple[float, ...] | None,
) -> Names:
    """Give every sample a person whose rounds (rounds, people) may be its own, and whose label is if that is known."""
    from scipy.optimize import linear_sum_assignment  # when it is needed: a second to import

    drawn = torch.zeros(len(batches), samples, dtype=torch.bool)
    for t, batch in enumerate(batches.values()):
        drawn[t, batch] = True
    against = violations(presence, drawn)
    cost = 10.0 * against.T.double() + (~people.sure).double().mean(dim=1)  # of too many the surest
    if labels is not None:
        cost += torch.tensor(labels)[:, None] != people.labels
    person = torch.full((samples,), -1)
    if len(people):
        rows, columns = map(torch.as_tensor, linear_sum_assignment(cost.numpy()))
        fits = against[columns, rows] == 0
        person[rows[fits]] = columns[fits]
    several = exchangeable(person, against == 0, None if labels is None else torch.tensor(labels))
    return Names(person, several, batches if several else None)


def exchangeable(person: Tensor, possible: Tensor, labels: Tensor | None) -> tuple[tuple[int, ...], ...]:
    """Return groups of samples whose people may have been mistaken for each other: nothing says which is which.

    `possible` (people, samples) says who may be which sample. Where nobody was found to be a sample, those who may be
    it count too.
    """
    from scipy.sparse.csgraph import connected_components

    found = person >= 0
    may_be = torch.zeros(len(person), len(person), dtype=torch.bool)  # a sample's person is the other sample
    may_be[found] = possible[person[found]]
    may_be[~found] = may_be[:, ~found].T
    if labels is not None:
        may_be &= labels[:, None] == labels
    count, group = connected_components(may_be.numpy(), connection="strong")
    members = [tuple((torch.as_tensor(group) == at).nonzero()[:, 0].tolist()) for at in range(count)]
    return tuple(own for own in members if len(own) > 1)
