"""The truncated total variation of equation (9)."""

from collections.abc import Sequence

import torch
from torch import Tensor


def total_variation(x: Tensor) -> Tensor:
    """Return the mean over the batch of each image's summed absolute differences between neighbours; 0 for tables."""
    if x.dim() < 3:
        return x.sum() * 0.0
    differences = (x[..., 1:, :] - x[..., :-1, :]).abs().sum() + (x[..., :, 1:] - x[..., :, :-1]).abs().sum()
    return differences / len(x)


def truncated(slices: Sequence[Tensor], threshold: float) -> Tensor:
    """Return the total variation of all workers' slices, or 0 where its mean over the workers is below the threshold.

    As in the paper's public code: the threshold is about one slice, the penalty is the sum over the workers.
    """
    total = torch.stack([total_variation(x) for x in slices]).sum()
    return total if float(total.detach()) / len(slices) > threshold else total.detach() * 0.0
