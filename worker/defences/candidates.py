"""Sets of sorted normal numbers, the one of them that is nearest to given tensors, and ranking those quickly."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Places = NDArray[np.int64]

SHARED_ABOVE = 2048
"""Of a tensor with more entries all candidates hold the same sample: sorted samples of so many hardly differ."""

LARGEST = 2**28
"""Of the 29 bits that float64 has more than float32 one stays 0, so that no place rounds a value up."""

_TAG = np.uint32(LARGEST - 1)


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


def places_in_order(values: Floats, shuffle: int = 1) -> Places:
    """Return the places of the values in ascending order.

    numpy sorts float64 words in milliseconds, so each carries its place in the bits that float32 does not have.
    Equal values (0 and -0 are equal) come in an order that is fixed by `shuffle`, an odd number: by place * shuffle
    modulo 2^28, upwards for zero and above, downwards below.
    """
    if len(values) > LARGEST:
        raise ValueError(f"{len(values)} entries are too many to rank")
    words = (values + np.float32(0)).astype(np.float64)  # -0 becomes 0
    bits = words.view(np.uint64)
    tags = np.arange(len(values), dtype=np.uint32)
    tags *= np.uint32(shuffle)
    tags &= _TAG
    bits |= tags
    words.sort()
    np.copyto(tags, bits, casting="unsafe")
    tags *= np.uint32(pow(shuffle, -1, LARGEST))  # whatever is above the tag's bits has no part in those below
    tags &= _TAG
    return tags.astype(np.int64)


def products(rows: Floats, entries: Floats) -> Floats:
    """Return rows @ entries, by torch: numpy's BLAS would take every core, whatever share this process has of them."""
    found: Floats = torch.from_numpy(rows).mv(torch.from_numpy(entries)).numpy()
    return found
