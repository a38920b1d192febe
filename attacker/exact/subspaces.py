"""Where batches meet: the span of the samples that they share, found as the common part of their subspaces."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from attacker.exact.cells import Cell
from attacker.exact.factors import Factors

MARGIN = 8.0
"""How many times the angle that rounding explains counts as zero: true meetings measure below 1, others thousands."""
WIDEST = 2e-3
"""The largest angle that counts as zero unless the whole gradient is noisier: distinct samples are further apart."""

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


def common(sides: Sequence[Side], product: Callable[[int, int], Tensor] | None = None) -> Tensor:
    """Return an orthonormal basis (space, k) of what subspaces have in common; product(i, j) is basis_i^T basis_j."""
    product = product or (lambda i, j: sides[i].basis.T @ sides[j].basis)
    if any(len(side.sigma) == 0 for side in sides):
        return sides[0].basis.new_zeros(len(sides[0].basis), 0)
    base = min(range(len(sides)), key=lambda i: sides[i].noise / float(sides[i].sigma[-1]))
    others = [i for i in range(len(sides)) if i != base]
    overlaps = [product(base, i) for i in others]
    gram = torch.zeros(len(sides[base].sigma), len(sides[base].sigma), dtype=torch.float64)
    for overlap in overlaps:
        gram += overlap @ overlap.T
    cosines, coordinates = torch.linalg.eigh(gram)
    cosines, coordinates = cosines.flip(0), coordinates.flip(1)
    # The eigenvalue is the sum of squared cosines: all of them 1 for a vector that every subspace contains
    angle = (len(others) - cosines).clamp_min(1e-15).sqrt()
    blur = sides[base].blur(coordinates).square()
    for i, overlap in zip(others, overlaps, strict=True):
        blur += sides[i].blur(overlap.T @ coordinates).square()
    explained = MARGIN * blur.sqrt()
    # Along a direction that is almost noise anything would meet: no wider than a few times the usual blur
    inside = angle <= torch.minimum(explained, explained.median().clamp_min(WIDEST)) + 1e-7
    shared: Tensor = sides[base].basis @ coordinates[:, inside]
    return shared


def cell_subspaces(cells: Sequence[Cell], sides: Sequence[Side]) -> list[Tensor]:
    """Return each cell's subspace, from all the batches that its samples were in."""
    product = _Products(sides)
    found = []
    for cell in cells:
        own = [sides[t] for t in cell.rounds]
        found.append(common(own, lambda i, j, rounds=cell.rounds: product(rounds[i], rounds[j])))  # type: ignore[misc]
    return found


def sharpen(vectors: Tensor, sides: Sequence[Side]) -> Tensor:
    """Return unit vectors (space, n) as the batch shows them in which each is blurred least."""
    blurs = torch.stack([side.blur(side.basis.T @ vectors) for side in sides])
    best = blurs.argmin(dim=0)
    sharp = vectors.clone()
    for number in best.unique().tolist():
        mine = best == number
        basis = sides[number].basis
        sharp[:, mine] = basis @ (basis.T @ vectors[:, mine])
    unit: Tensor = sharp / vector_norm(sharp, dim=0)
    return unit


class _Products:
    """basis_i^T basis_j for the pairs that are asked for, each computed once as long as there is room to keep it."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = sides
        self._known: dict[tuple[int, int], Tensor] = {}

    def __call__(self, i: int, j: int) -> Tensor:
        if i > j:
            return self(j, i).T
        if (i, j) in self._known:
            return self._known[i, j]
        found = self._sides[i].basis.T @ self._sides[j].basis
        if len(self._known) < KEPT:
            self._known[i, j] = found
        return found
