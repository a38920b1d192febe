"""Which sample is which: a person is in the rounds that its data fit, a sample in those whose indices have its own."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.exact.one_gradient.people import People
from attacker.exact.steps12.cells import cells_of


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
    order = (~people.sure.all(dim=1)).long().argsort(stable=True)[:samples]
    person = torch.full((samples,), -1)
    person[: len(order)] = order
    batches = {number: own[order].nonzero()[:, 0] for number, own in inside.items()}
    return Names(person, (tuple(range(samples)),), batches)


def names_of(
    people: People,
    inside: Tensor,
    batches: Mapping[int, Tensor],
    *,
    samples: int,
    labels: tuple[int, ...] | None,
) -> Names:
    """Give every sample the person whose rounds (rounds, people) are its own, and whose label is if that is known."""
    from scipy.optimize import linear_sum_assignment  # when it is needed: a second to import

    drawn = torch.zeros(len(batches), samples, dtype=torch.bool)
    for t, batch in enumerate(batches.values()):
        drawn[t, batch] = True
    person = torch.full((samples,), -1)
    known = None if labels is None else torch.tensor(labels)
    first_drawn, first_inside = _first(drawn), _first(inside)
    for t in range(len(batches)):  # only those that first turn up in the same round can be the same
        names, candidates = (first_drawn == t).nonzero()[:, 0], (first_inside == t).nonzero()[:, 0]
        if len(names) == 0 or len(candidates) == 0:
            continue
        cost = (drawn[:, names].T[:, None] != inside[:, candidates].T[None]).sum(dim=2).double()
        cost += 0.1 * (~people.sure[candidates]).double().mean(dim=1)  # of too many the surest
        if known is not None:
            cost += 0.5 * (known[names][:, None] != people.labels[candidates][None])
        rows, columns = linear_sum_assignment(cost.numpy())
        person[names[rows]] = candidates[columns]
    cells = [cell.samples for cell in cells_of(list(batches.values()), samples)]
    if labels is not None:
        cells = [tuple(n for n in cell if labels[n] == label) for cell in cells for label in {labels[n] for n in cell}]
    several = tuple(cell for cell in cells if len(cell) > 1)
    return Names(person, several, batches if several else None)


def _first(inside: Tensor) -> Tensor:
    """Return the first round (rounds, n) that has each, -1 for none."""
    return torch.where(inside.any(dim=0), inside.to(torch.uint8).argmax(dim=0), -1)
