"""Least squares over any number of rounds in the memory of one per sample: running normal equations.

With S the matrix of batches, S^T S and S^T G are sums over rounds; (S^T S)^-1 S^T G is every sample's own gradient,
and noise of the rounds goes down with their number.
"""

import torch
from torch import Tensor

from attacker.adaptive.own import Own, batch_row

DETERMINED = 1e-9
"""Eigenvalues of S^T S below this share of the largest leave samples undetermined."""


class Gram:
    """S^T S, the same for all workers."""

    def __init__(self, samples: int) -> None:
        self.matrix = torch.zeros(samples, samples, dtype=torch.float64)
        self.rounds = 0

    def add(self, batch: Tensor) -> None:
        """Count a round in."""
        row = batch_row(batch, len(self.matrix))[batch]
        self.matrix[batch[:, None], batch[None, :]] += torch.outer(row, row)
        self.rounds += 1

    @property
    def rank(self) -> int:
        """Return how many samples (or sums of samples) the rounds determine."""
        values = torch.linalg.eigvalsh(self.matrix)
        return int((values > DETERMINED * values[-1].clamp_min(1e-300)).sum())


class Sums:
    """S^T G of one worker."""

    def __init__(self, samples: int, directions: Tensor, inputs: int) -> None:
        self._directions = directions
        self._weight = torch.zeros(samples, len(directions), inputs, dtype=torch.float64)
        self._bias = torch.zeros(samples, directions.shape[1], dtype=torch.float64)

    def add(self, batch: Tensor, weight: Tensor, bias: Tensor) -> None:
        """Count a round in, its gradients of the layer's weight (outputs, inputs) and bias."""
        self._weight[batch] += (self._directions @ weight.double()) / len(batch)
        self._bias[batch] += bias.double() / len(batch)

    def solve(self, gram: Tensor) -> Own:
        """Return the samples' own gradients."""
        factor = torch.linalg.cholesky(gram)
        weight = torch.cholesky_solve(self._weight.flatten(1), factor).view_as(self._weight)
        return Own(weight, torch.cholesky_solve(self._bias, factor), self._directions)
