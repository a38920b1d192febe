"""Labels that the coordinator knows: they tell the samples of a cell apart where no batch does."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attacker.exact.steps12.cells import Cell
from attacker.exact.workers.labels import Joined

NOTE = "The coordinator has the labels itself: they were known, and not read from gradients."


def by_labels(cells: Sequence[Cell], joined: Joined, known: Tensor) -> tuple[Joined, tuple[tuple[int, ...], ...]]:
    """Give every sample of a cell what has its label; return also the groups whose order is still arbitrary.

    Where a cell's labels, as they are read from its gradients, are not those that it should have, one of them is read
    wrongly, and it is left as it is.
    """
    orders = [order.clone() for order in joined.orders]
    misfits = joined.misfits.clone()
    groups: list[tuple[int, ...]] = []
    for cell in cells:
        if len(cell.samples) == 1:
            continue
        slots = torch.tensor(cell.samples)
        wanted, read = known[slots].argsort(stable=True), joined.labels[slots].argsort(stable=True)
        if not torch.equal(known[slots][wanted], joined.labels[slots][read]):
            groups.append(cell.samples)
            continue
        source = torch.empty_like(slots)
        source[wanted] = slots[read]
        for order, before in zip(orders, joined.orders, strict=True):
            order[slots] = before[source]
        misfits[slots] = joined.misfits[source]
        alike = [tuple(slots[known[slots] == label].tolist()) for label in known[slots].unique().tolist()]
        groups += [group for group in alike if len(group) > 1]
    return replace(joined, orders=tuple(orders), misfits=misfits, labels=known), tuple(groups)
