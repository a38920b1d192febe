"""The sparsest non-negative vectors of a subspace: what is left where no coordinate shows a sample alone."""

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vector_norm

from attacker.exact.steps12.cone import ROW_OVER_NOISE, sharpen_zeros

NEGATIVE = 1e-3
"""The share of a unit vector that may be negative: more of it shows that the vector is no sample's."""
PROGRAMS = 6
"""Linear programs tried per vector that is missing."""


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
    for vector in given:
        if _is_sample(basis, vector, noise) and _is_new(vector, known):
            known.append(vector)
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
        if vertex is None:
            continue
        vector = sharpen_zeros(basis[None], (basis @ vertex)[None, None], torch.tensor([noise]).double())[0, 0]
        if _is_sample(basis, vector, noise) and _is_new(vector, known):
            known.append(vector)
    if len(known) == k:
        return torch.stack(known, dim=1)
    # Not all were found: the places of the others keep what successive projection put there, certificates tell
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


def _is_sample(basis: Tensor, vector: Tensor, noise: float) -> bool:
    return bool(are_samples(basis, vector[:, None], noise))


def _is_new(vector: Tensor, known: list[Tensor]) -> bool:
    return all(float(vector @ other) < 1 - 1e-7 for other in known)
