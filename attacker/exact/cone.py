"""Several samples that share a subspace, told apart by what a ReLU leaves: no negative value and many zeros."""

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vector_norm

ROW_OVER_NOISE = 100.0
"""Rows of the basis below this many times the noise of an entry point nowhere in particular: never picked as rays."""


def separate(basis: Tensor, noise: float) -> Tensor | None:
    """Return the non-negative unit vectors (space, k) whose cone fills the subspace, or None where there is none.

    The rows of the basis are non-negative combinations of k unknown vectors, one per sample. A coordinate where
    one sample alone is active gives that sample's vector: an extreme ray of the rows' cone. Successive projection
    finds the rays, the zeros of each sample then sharpen them.
    """
    if basis.shape[1] == 1:
        return _up(basis[:, 0])[:, None]
    length = basis.norm(dim=1)
    rows = basis[length > ROW_OVER_NOISE * noise]
    inner = interior(rows) if len(rows) >= basis.shape[1] else None
    if inner is None:
        return None
    rays = successive_projection(rows / (rows @ inner)[:, None], basis.shape[1])
    if rays is None:
        return None
    vectors = basis @ torch.linalg.inv(rays)
    return torch.stack([sharpen_zeros(basis, vectors[:, a], noise) for a in range(vectors.shape[1])], dim=1)


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


def sharpen_zeros(basis: Tensor, vector: Tensor, noise: float) -> Tensor:
    """Return the unit vector of the subspace that is exactly zero where `vector` nearly is, by least squares.

    What counts as nearly zero shrinks from a hundredth of the largest value to the noise: small true values
    drop out on the way, and hundreds of zeros fix the vector better than the one row that it was found by.
    """
    vector = _up(vector)
    alive = (vector_norm(basis, dim=1) > ROW_OVER_NOISE * noise).nonzero()[
        :, 0
    ]  # where none is active, zero says nothing
    rows = basis[alive]
    near = 1e-2 * float(vector.max())
    last: Tensor | None = None
    while True:
        zeros = vector[alive].abs() < near
        if last is None or not torch.equal(zeros, last):  # the same zeros have the same vector, which is this one
            if int(zeros.sum()) < basis.shape[1]:
                return vector
            _, values, directions = torch.linalg.svd(rows[zeros], full_matrices=False)
            if values[-2] < 10 * values[-1] or values[-2] < ROW_OVER_NOISE * noise:
                return vector  # the zeros leave more than one vector, or none: they decide nothing
            vector, last = _up(basis @ directions[-1]), zeros
        if near <= 10 * noise:
            return vector
        near = max(near / 4, 10 * noise)


def _up(vector: Tensor) -> Tensor:
    vector = vector / vector_norm(vector)
    return vector if float(vector.sum()) > 0 else -vector
