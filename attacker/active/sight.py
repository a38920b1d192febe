"""Where thresholds go to measure rows that are known once more, along another direction."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

DIRECTIONS = 24
"""Of so many, the one that tells most rows apart is taken for a measurement."""
CROWDED = 1e-4
"""How near a threshold may be to a row, relative to where that is (or to 1): rows are known to about that."""


@dataclass(frozen=True)
class Sight:
    """Which of a worker's groups a round measures: the two units between whose thresholds each of them lies."""

    direction: Tensor
    thresholds: Tensor
    groups: Tensor
    low: Tensor
    high: Tensor
    crowded: Tensor
    """Those with another so near that either may be on the wrong side of the threshold between them."""


def sight_of(rows: Tensor, wanted: Tensor, times: Tensor, units: int, *, random: torch.Generator) -> Sight:
    """Put thresholds around the wanted rows, those that were seen the fewest times first, while there are units."""
    several = [drawn_direction(rows.shape[1], random) for _ in range(DIRECTIONS)]
    direction = max(several, key=partial(_clear, rows, wanted))
    _, order, edges, crowded = _edges(rows, direction)
    places = wanted[order].nonzero().flatten()
    places = places[times[order][places].argsort(stable=True)]
    taken: dict[int, int] = {}
    chosen: list[int] = []
    for place in places.tolist():
        new = [edge for edge in (place, place + 1) if edge not in taken]
        if len(taken) + len(new) <= units:
            taken |= {edge: len(taken) + count for count, edge in enumerate(new)}
            chosen.append(place)
    low, high = (torch.tensor([taken[place + end] for place in chosen], dtype=torch.int64) for end in (0, 1))
    return Sight(direction, edges[list(taken)], order[chosen], low, high, crowded[chosen])


def _edges(rows: Tensor, direction: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return where rows are along a direction, their order, the thresholds between them, and who is too near to one."""
    along, order = (rows @ direction.double()).sort()
    edges = torch.cat([along[:1] - 1, (along[1:] + along[:-1]) / 2, along[-1:] + 1]).float()
    room = torch.minimum(along - edges[:-1], edges[1:] - along)
    return along, order, edges, room < CROWDED * along.abs().clamp(min=1.0)


def drawn_direction(features: int, random: torch.Generator) -> Tensor:
    """Draw a direction."""
    drawn = torch.randn(features, generator=random)
    unit: Tensor = drawn / drawn.norm()
    return unit


def _clear(rows: Tensor, wanted: Tensor, direction: Tensor) -> int:
    """Return how many of the wanted rows are clear of all others along a direction."""
    _, order, _, crowded = _edges(rows, direction)
    return int((wanted[order] & ~crowded).sum())
