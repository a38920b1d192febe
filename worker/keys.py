"""A worker's secret, which no other party has, and the random numbers that its defences draw from it."""

import hashlib
import hmac
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from vfl.errors import RunFailedError, UserError
from vfl.files import PRIVATE, PRIVATE_FOLDER, make_new, read_bounded, warn_if_others_read
from vfl.limits import PEM_BYTES

LEAST_BYTES = 16


class Secret:
    """The bytes behind a worker's draws: drawn by the worker itself at the first use, unless they are given.

    In `kept`, a file that only its owner reads, they outlast the process: a worker that is restarted, or a run that is
    resumed, goes on with the same draws. Each new run has a new secret.
    """

    def __init__(self, given: bytes | None = None, kept: Path | None = None) -> None:
        self._bytes, self._kept = given, kept
        self._continued = False

    def go_on(self) -> None:
        """Take note that another process began this run: its secret is read, and none is drawn."""
        self._continued = True

    def draws(self, purpose: str, number: int = 0) -> "Draws":
        """Return the stream of one purpose; the same one each time."""
        return Draws(partial(self._key, f"{purpose}/{number}"))

    def reveal(self) -> bytes:
        """Return the secret itself, for those that must share it."""
        if self._bytes is None:
            self._bytes = self._read() if self._continued else self._draw()
        return self._bytes

    def forget(self) -> None:
        """Remove the file: the run is over, and its draws need not be made again."""
        if self._kept is not None:
            self._kept.unlink(missing_ok=True)

    def _key(self, label: str) -> bytes:
        return hmac.digest(self.reveal(), label.encode(), "sha256")

    def _draw(self) -> bytes:
        drawn = os.urandom(32)
        if self._kept is not None:
            try:
                self._kept.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
                make_new(self._kept, PRIVATE)
                self._kept.write_bytes(drawn)
            except OSError as error:
                print(
                    f"this worker's secret cannot be kept in {self._kept} ({error.strerror}): the run can go on, but "
                    f"not if this worker is restarted (cafe work --state DIR names another folder)",
                    file=sys.stderr,
                    flush=True,
                )
        return drawn

    def _read(self) -> bytes:
        try:
            if self._kept is not None:
                return read_bounded(self._kept, PEM_BYTES)
            problem = "it was kept nowhere"
        except OSError as error:
            problem = f"{self._kept}: {error.strerror}"
        raise RunFailedError(
            f"this worker comes back without the secret that its defences drew from ({problem}), and other draws would "
            f"show the coordinator the same gradients twice: start the run anew"
        )


class FixedSecret(Secret):
    """Bytes that follow from the run's seed: for repeatable numbers, and no secret at all."""

    WARNING = (
        "NOT TESTED FOR REAL: with federation.fixed_secrets the defence's draws follow from the run's seed, and an "
        "attack can compute them and take them away again. Nothing that is said of this defence holds."
    )

    def __init__(self, seed: int, owner: str) -> None:
        super().__init__(hashlib.sha256(f"fixed secret of {owner} under seed {seed}".encode()).digest())
        self.used = False

    def reveal(self) -> bytes:
        """Return the bytes, and remember that they were used."""
        self.used = True
        return super().reveal()


def read_key(path: Path, option: str) -> bytes:
    """Return what a key file holds, or say what is wrong with the option that names it."""
    try:
        key = read_bounded(path, PEM_BYTES)
    except OSError as error:
        raise UserError(f"{option}: {path} cannot be read: {error.strerror}") from None
    if len(key) < LEAST_BYTES:
        raise UserError(f"{option}: {path} holds {len(key)} bytes; give it {LEAST_BYTES} random ones or more")
    warn_if_others_read(path)
    return key


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
