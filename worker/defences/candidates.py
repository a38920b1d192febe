"""Sets of sorted normal numbers, and the one of them that is nearest to given tensors."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from worker.defences.ranks import Floats, products

SHARED_ABOVE = 2048
"""Of a tensor with more entries all candidates hold the same sample: sorted samples of so many hardly differ."""


class Candidates:
    """So many candidates for tensors of these sizes, a sorted sample for each tensor: normal numbers or magnitudes."""

    def __init__(self, sizes: Sequence[int], count: int, magnitudes: bool, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._own = [at for at, size in enumerate(sizes) if size <= SHARED_ABOVE]
        self._curves = [
            _sorted_normal(random, count if size <= SHARED_ABOVE else 1, size, magnitudes) for size in sizes
        ]
        self._squares = np.zeros((count, len(sizes)))
        for at in self._own:
            self._squares[:, at] = np.square(self._curves[at], dtype=np.float64).sum(axis=1)

    def nearest(self, scales: Sequence[float], ordered: Sequence[Callable[[], Floats]]) -> int:
        """Return the candidate that, times each tensor's scale, is nearest in L2 to the tensors' ordered entries."""
        # |s z - g|^2 = s^2 |z|^2 - 2 s z.g + |g|^2: the last term is the same for all, as are shared samples.
        # In units of the largest scale, as squares of small float32 numbers vanish.
        unit = max([scales[at] for at in self._own], default=0.0) or 1.0
        distances: NDArray[np.float64] = np.zeros(len(self._squares))
        for at in self._own:
            scale = scales[at] / unit
            distances += scale**2 * self._squares[:, at]
            distances -= 2 * scale * products(self._curves[at], ordered[at]() / np.float32(unit))
        return int(np.argmin(distances))

    def curves(self, candidate: int) -> list[Floats]:
        """Return a candidate: for each tensor its numbers in ascending order."""
        return [rows[candidate if len(rows) > 1 else 0] for rows in self._curves]


def _sorted_normal(random: np.random.Generator, count: int, size: int, magnitudes: bool) -> Floats:
    drawn = random.standard_normal((count, size), dtype=np.float32)
    drawn = np.abs(drawn) if magnitudes else drawn
    drawn.sort(axis=1)
    return drawn
