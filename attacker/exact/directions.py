"""The direction of each sample's h: every cell's subspace, taken apart and given to its samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.exact.cells import Cell
from attacker.exact.cone import separate
from attacker.exact.factors import Factors
from attacker.exact.outputs_side import cell_subspaces_by_outputs
from attacker.exact.sparse import complete, is_sample
from attacker.exact.subspaces import Side, cell_subspaces, inputs_side, sharpen

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
    found: list[Tensor] = []
    of = torch.full((samples,), -1)
    count = 0
    for cell, subspace in zip(cells, subspaces, strict=True):
        rays = cell_rays(subspace, [sides[t] for t in cell.rounds])
        slots = _share_out(rays, cell, sides)
        for sample, slot in zip(cell.samples, slots, strict=True):
            of[sample] = count + slot if slot >= 0 else -1
        found.append(rays)
        count += rays.shape[1]
    vectors = torch.cat(found, dim=1) if found else torch.zeros(0, 0, dtype=torch.float64)
    return merge(Directions(vectors, of))


def cell_rays(subspace: Tensor, sides: Sequence[Side]) -> Tensor:
    """Return the unit vectors (inputs, k) of the samples that span a subspace; none where they do not separate."""
    if subspace.shape[1] == 0:
        return subspace
    # The error of the whole subspace, spread over its entries: what a zero looks like
    blur = min(float(side.blur(side.basis.T @ subspace).norm()) for side in sides)
    noise = blur / len(subspace) ** 0.5
    rays = separate(subspace, noise)
    if rays is None or not all(is_sample(subspace, rays[:, a], noise) for a in range(rays.shape[1])):
        rays = complete(subspace, rays, noise) if subspace.shape[1] > 1 else rays
    return sharpen(rays, sides) if rays is not None else subspace[:, :0]


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
