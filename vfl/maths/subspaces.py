"""Subspaces, each given by an orthonormal basis (space, k)."""

from torch import Tensor


def beyond(basis: Tensor, vectors: Tensor) -> Tensor:
    """Return the part of vectors (n, space) that lies outside of a subspace."""
    return vectors - (vectors @ basis) @ basis.T
