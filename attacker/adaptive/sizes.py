"""Sizes that clipping leaves unknown: the factor of each round, and the common size of v that labels depend on."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.solve import Solved
from attacker.exact.workers.labels import Network, join_workers
from attacker.exact.workers.pairing import common_u, equations
from attacker.exact.workers.tails import run_tail, top_jacobian

CLEAR = 0.5
"""The smallest eigenvalue must be below this share of the next, or noise has hidden the factors."""


def unclipped(products: Tensor, matrix: Tensor) -> Tensor | None:
    """Return the rounds' factors (rounds,), mean 1, from U U^T and S (rounds, samples); None if they do not show.

    True rounds are U_t = sum of S[t,n] X_n; a clipped one is that times an unknown factor. Let a_t be its inverse, and
    Q = 1 - S S^+ take out all that sums of samples explain: Q diag(a) U = 0 says that the rounds fit together once
    scaled back. Its squared length is a^T (Q * U U^T) a (entry by entry), least for the eigenvector of the smallest
    eigenvalue. The common factor of all rounds stays unknown, and cancels in h, a quotient of the weight's and the
    bias's gradients.
    """
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


def labels_of(solved: Sequence[Solved], network: Network) -> Tensor:
    """Return each sample's label, -1 where unknown: that whose softmax minus label explains all workers' v best."""
    size = _size(solved, network)
    rescaled = [Solved(own.h, own.v / size) for own in solved]
    alone = [Cell((n,), ()) for n in range(len(solved[0].h))]
    return join_workers(alone, rescaled, network).labels


def _size(solved: Sequence[Solved], network: Network) -> float:
    """Return how many times the softmax minus label that the h predict went into the v, in the median; 1 if unknown."""
    top = network.top
    tails = [
        run_tail(bottom, layer, shape, own.h)
        for bottom, layer, shape, own in zip(network.bottoms, network.layers, network.shapes, solved, strict=True)
    ]
    tops = top_jacobian(top, [tail.z.shape[1] for tail in tails])
    if tops is None:
        return 1.0
    u = common_u([equations(tail, own.v, one) for tail, own, one in zip(tails, solved, tops, strict=True)])
    with torch.no_grad():
        p = torch.softmax(top(torch.cat([tail.z for tail in tails], dim=1)), dim=1)
    predicted = p - torch.nn.functional.one_hot(u.argmin(dim=1), p.shape[1])
    ratio = (u * predicted).sum(1) / predicted.square().sum(1)
    size = float(ratio.nanmedian())
    return size if 0 < size < float("inf") else 1.0
