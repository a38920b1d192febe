"""Every sample's own gradient, taken out of any number of rounds in the memory of one per sample.

With S the matrix of batches, S^T S and S^T G are sums over rounds; (S^T S)^-1 S^T G is every sample's own gradient,
and noise of the rounds goes down with their number.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Own:
    """One worker's: of the weight's gradient some directions of the outputs, of the bias's all."""

    weight: Tensor
    """(samples, directions, inputs)."""
    bias: Tensor
    """(samples, outputs)."""
    directions: Tensor
    """(directions, outputs), orthonormal."""


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
