"""Which samples make up each round's batch."""

import hashlib
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from vfl.observation import Setting
from vfl.seeds import generator

CANDIDATES = 64
"""How many ways to divide an epoch the orthogonal schedule looks at."""


def batches_of(setting: Setting) -> Iterator[Tensor]:
    """Draw the batches of a run; in a horizontal federation each is made of a batch of every worker's own samples."""
    schedule, batch_size, rounds, seed = setting.schedule, setting.batch_size, setting.rounds, setting.seed
    if not setting.topology.is_horizontal:
        yield from batches(schedule, setting.samples, batch_size, rounds, seed=seed)
        return
    shares = enumerate(setting.topology.shares)
    each = [batches(schedule, share, batch_size, rounds, seed=seed, worker=worker) for worker, share in shares]
    for rows in zip(*each, strict=True):
        yield torch.cat(setting.topology.indices_of(rows))


def batches(
    schedule: str, samples: int, batch_size: int, rounds: int, *, seed: int, worker: int = 0
) -> Iterator[Tensor]:
    """Draw the batch indices of so many rounds; `worker` says whose, where each has its own."""
    draw = {"epochs": _epochs, "uniform": _uniform, "orthogonal": _orthogonal}[schedule]
    yield from draw(samples, min(batch_size, samples), rounds, generator(seed, "schedule", worker))


class Drawn:
    """The batches of the rounds that are done, as a digest: it tells one sequence from another."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, indices: Tensor) -> None:
        """Take in the next round's."""
        self._digest.update(len(indices).to_bytes(8, "little") + indices.to(torch.int64).numpy().tobytes())

    def __str__(self) -> str:
        return self._digest.hexdigest()


def _epochs(samples: int, batch_size: int, rounds: int, random: torch.Generator) -> Iterator[Tensor]:
    """Each epoch a permutation, cut into batches; the last one may be short."""
    drawn = 0
    while drawn < rounds:
        for batch in torch.randperm(samples, generator=random).split(batch_size):
            if drawn == rounds:
                return
            yield batch
            drawn += 1


def _uniform(samples: int, batch_size: int, rounds: int, random: torch.Generator) -> Iterator[Tensor]:
    """The paper's: each round K of the N samples, all subsets equally likely."""
    for _ in range(rounds):
        yield torch.randperm(samples, generator=random)[:batch_size]


def _orthogonal(samples: int, batch_size: int, rounds: int, random: torch.Generator) -> Iterator[Tensor]:
    """Epochs of batches that share as few samples as possible: what a coordinator that wants to know would choose.

    The samples, shuffled once, fill a table of B rows (the first epoch's batches) and K columns. The second epoch takes
    the diagonals: two samples of one batch differ in their columns, so they are apart as soon as there are as many rows
    as columns (N >= K^2). Where there are fewer, each later epoch takes, of many diagonals and a few permutations, the
    one that leaves the fewest pairs of samples together in all their batches.
    """
    shuffled = torch.randperm(samples, generator=random)
    rows = -(-samples // batch_size)
    place = torch.arange(samples)
    row, column = place // batch_size, place % batch_size
    cell = torch.zeros(samples, dtype=torch.int64)
    drawn = 0
    for epoch in itertools.count():
        batch = row
        if epoch > 0:
            slopes = [(epoch % rows, 0), *torch.randint(rows, (CANDIDATES, 2), generator=random).tolist()]
            # Permutations first: among equals they win, as diagonals alone repeat and leave sums undetermined.
            candidates = [row[torch.randperm(samples, generator=random)] for _ in range(CANDIDATES // 4)]
            candidates += [(row + s * (column % rows) + t * (column // rows)) % rows for s, t in slopes]
            batch = min(candidates, key=lambda candidate: _pairs(cell * rows + candidate))
        cell = torch.unique(cell * rows + batch, return_inverse=True)[1]
        for number in torch.randperm(rows, generator=random).tolist():
            if drawn == rounds:
                return
            yield shuffled[batch == number]
            drawn += 1


def _pairs(cell: Tensor) -> int:
    """Count the pairs of samples in the same cell."""
    counts = torch.unique(cell, return_counts=True)[1]
    return int((counts * (counts - 1)).sum()) // 2
