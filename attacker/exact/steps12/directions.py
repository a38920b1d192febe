"""The direction of each sample's h: every cell's subspace, taken apart and given to its samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from attacker.exact.steps12.cells import Cell, cells_by_round
from attacker.exact.steps12.cone import are_samples, complete_rays, separate_all
from attacker.exact.steps12.subspaces import Side, cell_subspaces, cell_subspaces_by_outputs, inputs_side, sharpen
from vfl.maths.factors import Factors

SAME = 5e-5
"""Unit vectors closer than this are one direction: identical slices have the same h, found with errors well below."""

BLOCK = 512
"""Directions compared with all others at a time: all at once would take memory that grows with their square."""


@dataclass(frozen=True)
class Directions:
    """The distinct directions at a worker and which of them each sample has."""

    vectors: Tensor
    """(inputs, directions), unit length."""
    of: Tensor
    """(samples,): the direction's number, -1 where none was found."""


def find_directions(cells: Sequence[Cell], factors: Sequence[Factors], samples: int) -> Directions:
    """Intersect the batches of every cell and separate what they share."""
    sides = [inputs_side(f) for f in factors]
    largest = max(f.size for f in factors)
    # The h side where it has room: it is the roomier one, and what it finds is h itself
    by_inputs = 2 * largest <= len(factors[0].left) or all(len(cell.rounds) == 1 for cell in cells)
    subspaces = cell_subspaces(cells, sides) if by_inputs else cell_subspaces_by_outputs(cells, factors)
    rays = cell_rays(cells, subspaces, sides)
    vectors = torch.cat(rays, dim=1) if rays else torch.zeros(0, 0, dtype=torch.float64)
    ends = accumulate(own.shape[1] for own in rays)
    places = [range(end - own.shape[1], end) for own, end in zip(rays, ends, strict=True)]  # in the row of all vectors
    del rays, subspaces  # as large as the vectors, which hold all of it now
    by_round = [
        torch.tensor([number for position in members for number in places[position]], dtype=torch.long)
        for members in cells_by_round(cells, len(sides))
    ]
    sharpen(vectors, by_round, sides)
    of = torch.full((samples,), -1)
    for cell, place in zip(cells, places, strict=True):
        slots = _share_out(vectors[:, place.start : place.stop], cell, sides)
        for sample, slot in zip(cell.samples, slots, strict=True):
            of[sample] = place.start + slot if slot >= 0 else -1
    return merge(Directions(vectors, of))


def cell_rays(cells: Sequence[Cell], subspaces: Sequence[Tensor], sides: Sequence[Side]) -> list[Tensor]:
    """Return each cell's unit vectors (inputs, k), of the samples that span its subspace; none if they do not part."""
    noises = [_noise(own, [sides[t] for t in cell.rounds]) for cell, own in zip(cells, subspaces, strict=True)]
    found = separate_all(subspaces, noises)
    return [_checked(*one) for one in zip(subspaces, found, noises, strict=True)]


def _noise(subspace: Tensor, sides: Sequence[Side]) -> float:
    """Return what a zero looks like where several samples are to be told apart by theirs."""
    if subspace.shape[1] < 2:
        return 0.0
    # The error of the whole subspace, spread over its entries
    blur = min(float(side.blur(side.basis.T @ subspace).norm()) for side in sides)
    return blur / math.sqrt(len(subspace))


def _checked(subspace: Tensor, rays: Tensor | None, noise: float) -> Tensor:
    """Return rays that are samples', as far as such are found."""
    several = subspace.shape[1] > 1
    if several and (rays is None or not bool(are_samples(subspace, rays, noise).all())):
        rays = complete_rays(subspace, rays, noise)
    return rays if rays is not None else subspace[:, :0]


def merge(directions: Directions) -> Directions:
    """Give directions that coincide one number, and drop those that no sample has."""
    used = directions.of[directions.of >= 0].unique()
    if len(used) == 0:
        return Directions(directions.vectors[:, :0], directions.of)
    vectors = directions.vectors[:, used]
    first = torch.cat([_first_alike(vectors, some) for some in vectors.split(BLOCK, dim=1)])
    kept, number = first.unique(return_inverse=True)
    renumbered = torch.full((directions.vectors.shape[1] + 1,), -1)  # the last entry answers for -1
    renumbered[used] = number
    return Directions(vectors[:, kept], renumbered[directions.of])


def _first_alike(vectors: Tensor, some: Tensor) -> Tensor:
    """Return for each of some directions the number of the first one that it coincides with."""
    close = (some.T @ vectors).abs() > 1 - 0.5 * SAME**2
    return close.to(torch.uint8).argmax(dim=1)


def _share_out(rays: Tensor, cell: Cell, sides: Sequence[Side]) -> list[int]:
    """Return for each sample of the cell which of the rays is its own, -1 for none."""
    wanted, there = len(cell.samples), rays.shape[1]
    if there == wanted or there == 0:
        return list(range(there)) + [-1] * (wanted - there)
    # A slice that many samples have (a black corner) turns up wherever its copies do: a ray seen in other
    # batches than the cell's is such a shared one. It is the last choice, and may serve several samples.
    seen = torch.stack([side.contains(rays, slack=1e-6) for side in sides]).sum(dim=0)
    order = seen.argsort(stable=True).tolist()
    if there > wanted:
        return order[:wanted]
    shared = order[-1] if int(seen[order[-1]]) > len(cell.rounds) else -1
    return order + [shared] * (wanted - there)
