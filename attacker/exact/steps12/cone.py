"""Several samples that share a subspace, told apart by what a ReLU leaves: no negative value and many zeros."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vector_norm

ROW_OVER_NOISE = 100.0
"""Rows of the basis below this many times the noise of an entry point nowhere in particular: never picked as rays."""
AT_ONCE_NUMBERS = 1 << 19
"""How many numbers are worked on together when zeros sharpen many vectors: what the caches hold."""


def separate(basis: Tensor, noise: float) -> Tensor | None:
    """Return the non-negative unit vectors (space, k) whose cone fills the subspace, or None where there is none."""
    return separate_all([basis], [noise])[0]


def separate_all(bases: Sequence[Tensor], noises: Sequence[float]) -> list[Tensor | None]:
    """Do so for many subspaces: the rays of each by itself, their zeros together where as many samples share one."""
    found = [first_rays(basis, noise) for basis, noise in zip(bases, noises, strict=True)]
    alike: dict[tuple[int, ...], list[int]] = {}
    for position, vectors in enumerate(found):
        if vectors is not None and vectors.shape[1] > 1:
            alike.setdefault(tuple(vectors.shape), []).append(position)
    for (space, k), positions in alike.items():
        at_once = max(1, AT_ONCE_NUMBERS // (space * k * k))
        for start in range(0, len(positions), at_once):
            block = positions[start : start + at_once]
            rays = torch.stack([_known(found[position]).T for position in block])
            own = torch.stack([bases[position] for position in block])
            sharp = sharpen_zeros(own, rays, torch.tensor([noises[position] for position in block]).double())
            for position, vectors in zip(block, sharp, strict=True):
                found[position] = vectors.T
    return found


def first_rays(basis: Tensor, noise: float) -> Tensor | None:
    """Return the vectors (space, k) that single coordinates show, or None where the rows fit in no half-space.

    The rows of the basis are non-negative combinations of k unknown vectors, one per sample. A coordinate where
    one sample alone is active gives that sample's vector: an extreme ray of the rows' cone. Successive projection
    finds the rays, the zeros of each sample then sharpen them.
    """
    if basis.shape[1] < 2:
        return _up(basis.T).T
    rows = basis[vector_norm(basis, dim=1) > ROW_OVER_NOISE * noise]
    inner = interior(rows) if len(rows) >= basis.shape[1] else None
    if inner is None:
        return None
    rays = successive_projection(rows / (rows @ inner)[:, None], basis.shape[1])
    return basis @ torch.linalg.inv(rays) if rays is not None else None


def interior(rows: Tensor) -> Tensor | None:
    """Return f with f.b > 0 for every row b, or None if the rows fit in no half-space."""
    from scipy.optimize import linprog  # when it is needed: a second to import

    unit = rows / rows.norm(dim=1, keepdim=True)
    mean: Tensor = unit.mean(dim=0)
    if float((unit @ mean).min()) > 0.05:  # the usual case: the cone is narrow, no linear program needed
        return mean
    count, k = unit.shape
    # Maximise the smallest f.b over the cube |f| <= 1
    program = linprog(
        np.append(np.zeros(k), -1.0),
        A_ub=np.hstack([-unit.numpy(), np.ones((count, 1))]),
        b_ub=np.zeros(count),
        bounds=[(-1.0, 1.0)] * k + [(None, None)],
        method="highs",
    )
    if program.x is None or program.x[-1] <= 0:
        return None
    found: Tensor = torch.from_numpy(program.x[:k].copy())
    return found


def successive_projection(points: Tensor, k: int) -> Tensor | None:
    """Return k of the points (Araújo et al. 2001): the longest, then the longest once that direction is taken out."""
    rest = points.clone()
    picked = []
    for _ in range(k):
        lengths = rest.norm(dim=1)
        best = int(lengths.argmax())
        if float(lengths[best]) < 1e-9:
            return None
        picked.append(best)
        direction = rest[best] / lengths[best]
        rest = rest - (rest @ direction)[:, None] * direction
    return points[picked]


def sharpen_zeros(bases: Tensor, vectors: Tensor, noise: Tensor) -> Tensor:
    """Return unit vectors (cells, n, space) of subspaces (cells, space, k): zero where those given nearly are.

    What counts as nearly zero shrinks from a hundredth of the largest value to the noise (cells,): small true values
    drop out on the way, and hundreds of zeros fix a vector better, by least squares, than the one row that it was
    found by. A vector whose zeros decide nothing stays as it is from there on.
    """
    vectors = _up(vectors)
    noise = noise[:, None]
    alive = vector_norm(bases, dim=2) > ROW_OVER_NOISE * noise  # where none is active, zero says nothing
    near = 1e-2 * vectors.amax(dim=2)
    going = torch.ones_like(near, dtype=torch.bool)
    last: Tensor | None = None
    while True:
        zeros = (vectors.abs() < near[..., None]) & alive[:, None]
        # the same zeros have the same vector, which is this one
        work = going if last is None else going & (zeros != last).any(dim=2)
        last = zeros
        going = going & ~(work & (zeros.sum(dim=2) < bases.shape[2]))
        cell, at = (work & going).nonzero(as_tuple=True)
        if len(cell):
            found, sound = _null_vectors(bases[cell] * zeros[cell, at][..., None], noise[cell])
            going[cell[~sound], at[~sound]] = False
            cell, at = cell[sound], at[sound]
            vectors[cell, at] = _up((bases[cell] @ found[sound][..., None])[..., 0])
        going = going & (near > 10 * noise)
        if not bool(going.any()):
            return vectors
        near = torch.maximum(near / 4, 10 * noise)


def _null_vectors(rows: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit vectors (n, k) that rows (n, space, k) make smallest, and whether they are the only ones."""
    triangles = torch.linalg.qr(rows, mode="r").R  # it has the right singular vectors of the rows
    _, values, directions = torch.linalg.svd(triangles)
    sound = (values[:, -2] >= 10 * values[:, -1]) & (values[:, -2] >= ROW_OVER_NOISE * noise[:, 0])
    return directions[:, -1], sound


def _known(vectors: Tensor | None) -> Tensor:
    assert vectors is not None
    return vectors


def _up(vectors: Tensor) -> Tensor:
    """Return vectors (…, space) at unit length, turned so that their sum is positive."""
    vectors = vectors / vector_norm(vectors, dim=-1, keepdim=True)
    return torch.where(vectors.sum(dim=-1, keepdim=True) > 0, vectors, -vectors)
