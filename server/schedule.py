"""Which samples make up each round's batch."""

from collections.abc import Iterator

import torch
from torch import Tensor

from vfl.seeds import generator


def batches(schedule: str, samples: int, batch_size: int, rounds: int, seed: int) -> Iterator[Tensor]:
    """Draw the batch indices of so many rounds."""
    draw = {"epochs": _epochs, "uniform": _uniform}[schedule]
    yield from draw(samples, min(batch_size, samples), rounds, seed)


def _epochs(samples: int, batch_size: int, rounds: int, seed: int) -> Iterator[Tensor]:
    """Each epoch a permutation, cut into batches; the last one may be short."""
    random = generator(seed, "schedule")
    drawn = 0
    while drawn < rounds:
        for batch in torch.randperm(samples, generator=random).split(batch_size):
            if drawn == rounds:
                return
            yield batch
            drawn += 1


def _uniform(samples: int, batch_size: int, rounds: int, seed: int) -> Iterator[Tensor]:
    """The paper's: each round K of the N samples, all subsets equally likely."""
    random = generator(seed, "schedule")
    for _ in range(rounds):
        yield torch.randperm(samples, generator=random)[:batch_size]
