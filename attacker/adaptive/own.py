"""Every sample's own gradient as it was taken out of the rounds, whatever way."""

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


def batch_row(batch: Tensor, samples: int) -> Tensor:
    """Return the weights with which the samples' gradients enter a batch's: a mean, so a short one weighs them more."""
    row = torch.zeros(samples, dtype=torch.float64)
    row[batch] = 1 / len(batch)
    return row
