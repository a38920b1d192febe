"""Where batches meet: the span of the samples that they share, found as the common part of their subspaces."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.linalg import vector_norm

from attacker.exact.steps12.cells import Cell, cells_by_round
from vfl.maths.factors import Factors

MARGIN = 8.0
"""How many times the angle that rounding explains counts as zero: true meetings measure below 1, others thousands."""
WIDEST = 2e-3
"""The largest angle that counts as zero unless the whole gradient is noisier: distinct samples are further apart."""

AT_ONCE = 128
"""Cells whose meeting is computed in one call: a decomposition of a few dozen rows is as long in the interpreter."""
KEPT = 4096
"""Products of two batches that are kept: with many samples hardly any pair of batches is asked for twice."""


@dataclass(frozen=True)
class Side:
    """One side of a batch's factors: an orthonormal basis, and how much noise blurs each of its vectors."""

    basis: Tensor
    """(space, rank)."""
    sigma: Tensor
    noise: float

    def blur(self, coordinates: Tensor) -> Tensor:
        """Return the angle by which rounding may have moved unit vectors, given by their coordinates (rank, n)."""
        # x = G w, so the error of x is the error of G times |w|: weak singular directions are uncertain
        # vector_norm is what .norm() calls, after as much work in Python as the whole norm of a few numbers takes
        angle: Tensor = self.noise * vector_norm(coordinates / self.sigma[:, None], dim=0)
        return angle

    def distance(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far unit vectors (space, n) are from the subspace, and the blur that explains."""
        coordinates = self.basis.T @ vectors
        return vector_norm(vectors - self.basis @ coordinates, dim=0), self.blur(coordinates)

    def contains(self, vectors: Tensor, slack: float = 0.0) -> Tensor:
        """Tell which unit vectors (space, n) lie in the subspace, up to rounding and their own error."""
        distance, blur = self.distance(vectors)
        return distance <= (MARGIN * blur).clamp_max(WIDEST) + slack


def inputs_side(factors: Factors) -> Side:
    """Return the side where h lives."""
    return Side(factors.left, factors.sigma, factors.noise)


def outputs_side(factors: Factors) -> Side:
    """Return the side where v lives."""
    return Side(factors.right, factors.sigma, factors.noise)


def cell_subspaces(cells: Sequence[Cell], sides: Sequence[Side]) -> list[Tensor]:
    """Return each cell's subspace, what all the batches that its samples were in have in common."""

    @lru_cache(KEPT)
    def ascending(i: int, j: int) -> Tensor:
        return sides[i].basis.T @ sides[j].basis

    def product(i: int, j: int) -> Tensor:
        return ascending(i, j) if i <= j else ascending(j, i).T

    found = [sides[0].basis.new_zeros(len(sides[0].basis), 0)] * len(cells)
    for block in _alike(cells, sides):
        orders = torch.tensor([order for _, order in block])
        products = [[product(order[0], other) for other in order[1:]] for _, order in block]
        coordinates, inside = _meet(products, orders, sides)
        for (position, order), own, shared in zip(block, coordinates, inside, strict=True):
            found[position] = sides[order[0]].basis @ own[:, shared]
    return found


def cell_subspaces_by_outputs(cells: Sequence[Cell], factors: Sequence[Factors]) -> list[Tensor]:
    """Return each cell's subspace of h (inputs, k), where the inputs have no room for two batches but the outputs have.

    The batches meet among the v, and from there it crosses over to h.
    """
    found = cell_subspaces(cells, [outputs_side(f) for f in factors])
    best: list[tuple[float, Tensor]] = [(torch.inf, factors[0].left[:, :0]) for _ in cells]
    for own, members in zip(factors, cells_by_round(cells, len(factors)), strict=True):
        widths = [found[position].shape[1] for position in members]
        if sum(widths) != own.rank or own.rank == 0:
            continue  # a batch with unknown samples in it does not come apart
        # G^T = X V^T with the cells' bases side by side in V: X = L Sigma (R^T V)^-T, the cells' h side by side
        dual = torch.linalg.inv(own.right.T @ torch.cat([found[position] for position in members], dim=1)).T
        crossed = own.left @ (own.sigma[:, None] * dual)
        for position, part, weights in zip(members, crossed.split(widths, 1), dual.split(widths, 1), strict=True):
            # The batch with the smallest leverage, never an average: a bad one would spoil the good ones
            leverage = own.noise * float(weights.norm()) / float(part.norm().clamp_min(1e-300))
            if leverage < best[position][0]:
                best[position] = (leverage, torch.linalg.qr(part).Q)
    return [basis for _, basis in best]


Order = tuple[int, ...]
"""The rounds of a cell, the one with the clearest basis first."""


def _alike(cells: Sequence[Cell], sides: Sequence[Side]) -> Iterator[list[tuple[int, Order]]]:
    """Yield blocks of cells (their positions and orders) whose batches have the same ranks, to be met in one go."""
    blur = [side.noise / float(side.sigma[-1]) if len(side.sigma) else torch.inf for side in sides]
    groups: dict[tuple[int, ...], list[tuple[int, Order]]] = {}
    for position, cell in enumerate(cells):
        base = min(cell.rounds, key=blur.__getitem__)
        order = (base, *(t for t in cell.rounds if t != base))
        ranks = tuple(len(sides[t].sigma) for t in order)
        if all(ranks):
            groups.setdefault(ranks, []).append((position, order))
    for group in groups.values():
        for start in range(0, len(group), AT_ONCE):
            yield group[start : start + AT_ONCE]


def _meet(products: Sequence[Sequence[Tensor]], orders: Tensor, sides: Sequence[Side]) -> tuple[Tensor, Tensor]:
    """Return for each cell coordinates (cells, rank, rank) in its first basis, and which columns all bases contain.

    `products` has for each cell the products of its first basis with each of the others.
    """
    by_place = [[sides[t] for t in rounds] for rounds in orders.T.tolist()]
    overlaps = [torch.stack(own) for own in zip(*products, strict=True)]
    count, rank = len(orders), len(by_place[0][0].sigma)
    gram = sum((one @ one.mT for one in overlaps), torch.zeros(count, rank, rank, dtype=torch.float64))
    cosines, coordinates = torch.linalg.eigh(gram)
    cosines, coordinates = cosines.flip(1), coordinates.flip(2)
    # The eigenvalue is the sum of squared cosines: all of them 1 for a vector that every subspace contains
    angle = (len(overlaps) - cosines).clamp_min(1e-15).sqrt()
    blur = _blurs(by_place[0], coordinates).square()
    for others, overlap in zip(by_place[1:], overlaps, strict=True):
        blur += _blurs(others, overlap.mT @ coordinates).square()
    explained = MARGIN * blur.sqrt()
    # Along a direction that is almost noise anything would meet: no wider than a few times the usual blur
    usual = explained.median(dim=1, keepdim=True).values.clamp_min(WIDEST)
    return coordinates, angle <= torch.minimum(explained, usual) + 1e-7


def _blurs(sides: Sequence[Side], coordinates: Tensor) -> Tensor:
    """Return `Side.blur` for a side of each of many cells, with coordinates (cells, rank, n)."""
    sigma, noise = torch.stack([side.sigma for side in sides]), torch.tensor([[side.noise] for side in sides]).double()
    angle: Tensor = noise * vector_norm(coordinates / sigma[:, :, None], dim=1)
    return angle


def sharpen(vectors: Tensor, rounds: Sequence[Tensor], sides: Sequence[Side]) -> None:
    """Turn unit vectors (space, n) into what the batch shows of them in which each is blurred least.

    `rounds` has for each batch which of the vectors are in it.
    """
    least = vectors.new_full((vectors.shape[1],), torch.inf)
    best = torch.zeros(vectors.shape[1], dtype=torch.long)
    for t, (own, side) in enumerate(zip(rounds, sides, strict=True)):
        blur = side.blur(side.basis.T @ vectors[:, own])
        less = blur < least[own]
        least[own[less]], best[own[less]] = blur[less], t
    for t in best.unique().tolist():
        mine, basis = (best == t).nonzero()[:, 0], sides[t].basis
        sharp = basis @ (basis.T @ vectors[:, mine])
        vectors[:, mine] = sharp / vector_norm(sharp, dim=0)
