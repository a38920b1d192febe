"""Clipping undone: which factor each round was scaled with, in closed form.

True rounds are U_t = sum of S[t,n] X_n; a clipped one is that times an unknown factor. Let a_t be its inverse, and
Q = 1 - S S^+ take out all that sums of samples explain: Q diag(a) U = 0 says that the rounds fit together once scaled
back. Its squared length is a^T (Q * U U^T) a (entry by entry), least for the eigenvector of the smallest eigenvalue.
The common factor of all rounds stays unknown, and cancels in h, a quotient of the weight's and the bias's gradients.
"""

import torch
from torch import Tensor

CLEAR = 0.5
"""The smallest eigenvalue must be below this share of the next, or noise has hidden the factors."""


def unclipped(products: Tensor, matrix: Tensor) -> Tensor | None:
    """Return the rounds' factors (rounds,), mean 1, from U U^T and S (rounds, samples); None if they do not show."""
    if len(matrix) <= matrix.shape[1] + 1:
        return None
    q = torch.eye(len(matrix), dtype=torch.float64) - matrix @ torch.linalg.pinv(matrix)
    size = products.diagonal().sqrt().clamp_min(1e-300)  # in units of each round's own size: factors near 1
    values, vectors = torch.linalg.eigh(q * products / torch.outer(size, size))
    factors: Tensor = vectors[:, 0] / size
    factors = factors / factors.mean()
    if float(values[0]) > CLEAR * float(values[1]) or not bool((factors > 0).all()):
        return None
    return factors
