"""Samples' own gradients from those of batches, which are means of them: linear equations, the same in every layer.

S is the matrix of batches, a row for each round: it takes the samples' gradients to the rounds'.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

SURE = 1e-8
"""An error of the inverse below this is nothing beside the rounding of float32 gradients."""
DETERMINED = 1e-9
"""Eigenvalues of S^T S below this share of the largest leave samples undetermined."""


def batch_matrix(batches: Sequence[Tensor], samples: int) -> Tensor:
    """Return S (rounds, samples): a mean over each batch, so that a short one weighs its samples more."""
    matrix = torch.zeros(len(batches), samples, dtype=torch.float64)
    for row, batch in zip(matrix, batches, strict=True):
        row[batch] = 1 / len(batch)
    return matrix


def pseudo_inverse(batches: Sequence[Tensor], samples: int) -> tuple[Tensor, int]:
    """Return the pseudo-inverse (samples, rounds) of S, and its rank."""
    matrix = batch_matrix(batches, samples)
    quick = _by_normal_equations(matrix)
    if quick is not None:
        return quick, samples
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    keep = s > s[:1] * 1e-9
    return (vh[keep].T / s[keep]) @ u[:, keep].T, int(keep.sum())


def first_factor(products: Tensor, second: Tensor, floor: float = 0.0) -> Tensor:
    """Return each h (n, d) of products (n, q, d) that are (R v) h^T, given R v (n, q), in the least-squares sense.

    Where R v is zero h means nothing; a floor keeps it finite.
    """
    h: Tensor = torch.einsum("nqd,nq->nd", products, second) / second.square().sum(1, keepdim=True).clamp_min(floor)
    return h


def beyond(basis: Tensor, vectors: Tensor) -> Tensor:
    """Return the part of vectors (n, space) that lies outside of a subspace, given an orthonormal basis (space, k)."""
    return vectors - (vectors @ basis) @ basis.T


class Gram:
    """S^T S, added up round by round: memory grows with the samples, not with the rounds."""

    def __init__(self, samples: int) -> None:
        self.matrix = torch.zeros(samples, samples, dtype=torch.float64)
        self.rounds = 0

    def add(self, batch: Tensor) -> None:
        """Count a round in."""
        share = 1 / len(batch)
        self.matrix[batch[:, None], batch] += share * share
        self.rounds += 1

    @property
    def rank(self) -> int:
        """Return how many samples (or sums of samples) the rounds determine."""
        values = torch.linalg.eigvalsh(self.matrix)
        return int((values > DETERMINED * values[-1].clamp_min(1e-300)).sum())


def _by_normal_equations(matrix: Tensor) -> Tensor | None:
    """Return the inverse where the rounds determine every sample beyond doubt, many times faster than the SVD."""
    factor, failed = torch.linalg.cholesky_ex(matrix.T @ matrix)
    if int(failed):
        return None
    inverse: Tensor = torch.cholesky_solve(matrix.T, factor)
    probe = torch.randn(matrix.shape[1], 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return inverse if float((inverse @ (matrix @ probe) - probe).abs().max()) < SURE else None
