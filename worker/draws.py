"""Random numbers that only the holder of a key can compute."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor


class Draws:
    """One stream of random numbers; the key is asked for at the first of them.

    AES in counter mode, since torch's own generator hides nothing: it uses 32 bits of its seed, which can all be
    tried, and some hundred of its numbers, which an attack reads off where a gradient is zero, give away all others.
    """

    def __init__(self, key: Callable[[], bytes]) -> None:
        self._key = key
        self._stream: CipherContext | None = None

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Draw float32 numbers from 0 to below 1."""
        words = self._words(math.prod(shape)) >> np.uint32(8)
        return torch.from_numpy(words.astype(np.float32)).mul_(2**-24).reshape(tuple(shape))

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Draw standard normal float32 numbers (Box and Muller), the same whatever device they go to."""
        count = math.prod(shape)
        half = -(-count // 2)
        drawn = torch.from_numpy(self._words(2 * half).astype(np.float32))
        length = drawn[:half].add_(0.5).mul_(2**-32).log_().mul_(-2).sqrt_()
        angle = drawn[half:].mul_(2 * math.pi * 2**-32)
        return torch.cat([length * angle.cos(), length * angle.sin()])[:count].reshape(tuple(shape))

    def permutation(self, count: int) -> Tensor:
        """Draw an order of the numbers from 0 to below `count`."""
        return torch.from_numpy(self._words(2 * count).view(np.uint64).argsort())

    def integer(self, bits: int = 128) -> int:
        """Draw a whole number of so many bits."""
        return int.from_bytes(self._bytes(-(-bits // 8)), "little") >> -bits % 8

    def _words(self, count: int) -> NDArray[np.uint32]:
        return np.frombuffer(self._bytes(4 * count), np.uint32)

    def _bytes(self, count: int) -> bytes:
        if self._stream is None:
            self._stream = Cipher(algorithms.AES(self._key()), modes.CTR(bytes(16))).encryptor()
        return self._stream.update(bytes(count))
