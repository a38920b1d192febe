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
NEGATIVE = 1e-3
"""The share of a unit vector that may be negative: more of it shows that the vector is no sample's."""
PROGRAMS = 6
"""Linear programs tried per vector that is missing."""


def separate(basis: Tensor, noise: float) -> Tensor | None:
    """Return the non-negative unit vectors (space, k) whose cone fills the subspace, or None where there is none."""
    return separate_all([basis], [noise])[0]


def separate_all(bases: Sequence[Tensor], noises: Sequence[float]) -> list[Tensor | None]:
    """Do so for many subspaces: the rays of each by itself, their zeros together where as many samples share one."""
    found = [first_rays(basis, noise) for basis, noise in zip(bases, noises, strict=True)]
    alike: dict[tuple[int, ...], list[tuple[int, Tensor]]] = {}
    for position, vectors in enumerate(found):
        if vectors is not None and vectors.shape[1] > 1:
            alike.setdefault(tuple(vectors.shape), []).append((position, vectors.T))
    for (space, k), group in alike.items():
        at_once = max(1, AT_ONCE_NUMBERS // (space * k * k))
        for start in range(0, len(group), at_once):
            positions, rays = zip(*group[start : start + at_once], strict=True)
            own = torch.stack([bases[position] for position in positions])
            noise = torch.tensor([noises[position] for position in positions]).double()
            for position, vectors in zip(positions, sharpen_zeros(own, torch.stack(rays), noise), strict=True):
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


def are_samples(basis: Tensor, vectors: Tensor, noise: float) -> Tensor:
    """Tell which unit vectors (space, n) of the subspace are non-negative and zero more often than a mixture can be."""
    alive = vector_norm(basis, dim=1) > ROW_OVER_NOISE * noise
    zeros = alive[:, None] & (vectors.abs() < 20 * noise + 1e-6)
    # Any vertex of the cone has k - 1 zeros. A sample has its ReLU's, in every direction of what it is orthogonal to
    often = zeros.sum(dim=0) >= 3 * basis.shape[1]
    found: Tensor = often & (vector_norm(vectors.clamp_max(0), dim=0) <= NEGATIVE)
    return found


def complete_rays(basis: Tensor, vectors: Tensor | None, noise: float) -> Tensor | None:
    """Return the samples' unit vectors (space, k): the right ones of `vectors` and those that linear programs find.

    Among the non-negative vectors of the subspace the program takes the one that is largest at a coordinate for its
    sum: a vertex of the cone. Coordinates where all known samples are zero come first: only missing ones are active.
    """
    k = basis.shape[1]
    given = [] if vectors is None else list(vectors.unbind(dim=1))
    known: list[Tensor] = []

    def keep_a_sample(vector: Tensor) -> None:
        if bool(are_samples(basis, vector[:, None], noise)) and _is_new(vector, known):
            known.append(vector)

    for vector in given:
        keep_a_sample(vector)
    length = basis.norm(dim=1)
    rows = basis[length > ROW_OVER_NOISE * noise]
    if len(rows) < k:
        return vectors
    tried = torch.zeros(len(basis), dtype=torch.bool)
    for _ in range(PROGRAMS * (k - len(known))):
        if len(known) == k:
            break
        explained = torch.stack(known).amax(dim=0) if known else torch.zeros_like(length)
        score = length / (explained + 1e-3 * length.max())
        score[tried] = -1
        at = int(score.argmax())
        tried[at] = True
        vertex = _vertex(rows, basis[at])
        if vertex is not None:
            sharp = sharpen_zeros(basis[None], (basis @ vertex)[None, None], torch.tensor([noise]).double())
            keep_a_sample(sharp[0, 0])
    if len(known) == k:
        return torch.stack(known, dim=1)
    # Not all were found: the places of the others keep what successive projection put there, residuals tell
    rest = [vector for vector in given if _is_new(vector, known)]
    return torch.stack((known + rest)[:k], dim=1) if len(known) + len(rest) >= k else vectors


def _vertex(rows: Tensor, row: Tensor) -> Tensor | None:
    """Return w with rows w >= 0 and row w = 1 whose sum of rows w is smallest."""
    from scipy.optimize import linprog  # when it is needed: a second to import

    program = linprog(
        rows.sum(dim=0).numpy(),
        A_ub=-rows.numpy(),
        b_ub=np.zeros(len(rows)),
        A_eq=row[None].numpy(),
        b_eq=[1.0],
        bounds=[(None, None)] * rows.shape[1],
        method="highs",
    )
    if program.x is None:
        return None
    found: Tensor = torch.from_numpy(program.x.copy())
    return found


def _is_new(vector: Tensor, known: list[Tensor]) -> bool:
    return all(float(vector @ other) < 1 - 1e-7 for other in known)


def _up(vectors: Tensor) -> Tensor:
    """Return vectors (…, space) at unit length, turned so that their sum is positive."""
    vectors = vectors / vector_norm(vectors, dim=-1, keepdim=True)
    return torch.where(vectors.sum(dim=-1, keepdim=True) > 0, vectors, -vectors)
