"""Whose samples are whose in a horizontal federation: worker 0's come first, then worker 1's, and so on."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from vfl.errors import UserError


def even_runs(count: int, workers: int) -> list[slice]:
    """Divide so many samples into runs, one a worker, as even as possible; with few samples some are empty."""
    return [slice(first, last) for first, last in pairwise(round(i * count / workers) for i in range(workers + 1))]


def sample_runs(samples: int, workers: int, batch_size: int) -> list[slice]:
    """Divide the training samples; each worker needs a whole batch of its own."""
    runs = even_runs(samples, workers)
    least = min(run.stop - run.start for run in runs)
    if least < batch_size:
        raise UserError(
            f"federation.batch_size: {samples} samples among {workers} workers leave one with {least}, and in a "
            f"horizontal federation each worker draws {batch_size} of its own a round"
        )
    return runs


def joint_indices(rows: Sequence[Tensor], shares: Sequence[int]) -> Tensor:
    """Return all workers' rows, each counted from its own first sample, as indices of the whole."""
    return torch.cat([own + first for own, first in zip(rows, accumulate(shares, initial=0), strict=False)])


def own_rows(indices: Tensor, shares: Sequence[int]) -> list[Tensor]:
    """Return each worker's part of indices of the whole, in their order, counted from its own first sample."""
    edges = pairwise(accumulate(shares, initial=0))
    return [indices[(first <= indices) & (indices < last)] - first for first, last in edges]
