"""Cells: the samples that are together in all their batches, which no batch tells apart."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Cell:
    """Samples with the same rounds."""

    samples: tuple[int, ...]
    rounds: tuple[int, ...]
    """Positions in the list of batches, ascending."""


def cells_of(batches: Sequence[Tensor], samples: int) -> list[Cell]:
    """Group the samples by the batches that drew them; those never drawn are in no cell."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for sample, drawn in enumerate(rounds_of_each(batches, samples)):
        if drawn:
            groups.setdefault(drawn, []).append(sample)
    return [Cell(tuple(members), drawn) for drawn, members in groups.items()]


def rounds_of_each(batches: Sequence[Tensor], samples: int) -> list[tuple[int, ...]]:
    """Return for each sample the positions of the batches that drew it."""
    rounds: list[list[int]] = [[] for _ in range(samples)]
    for number, batch in enumerate(batches):
        for sample in batch.tolist():
            rounds[sample].append(number)
    return list(map(tuple, rounds))


def cells_by_round(cells: Sequence[Cell], rounds: int) -> list[list[int]]:
    """Return for each round the positions of the cells that take part in it."""
    members: list[list[int]] = [[] for _ in range(rounds)]
    for position, cell in enumerate(cells):
        for number in cell.rounds:
            members[number].append(position)
    return members
