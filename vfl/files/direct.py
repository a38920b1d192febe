"""Files written past the kernel's cache: new pages there cost several times the processor time of the copy itself."""

import errno
import mmap
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from vfl.files import PRIVATE

BLOCK = 4096
"""What such writes come in multiples of, on every disk in use."""
STAGE = 4 * 1024 * 1024
"""Bytes that are brought together, aligned, before they go to the disk: few enough to stay in a processor's cache."""


def write_directly(path: Path, parts: Iterable[bytes | memoryview]) -> bool:
    """Write a file, over what it held before; False where that cannot be done, and it is to be written as usual."""
    if sys.platform != "linux":
        return False
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, PRIVATE)
        try:
            _write(file, parts, _stage())
        finally:
            os.close(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return False  # not every file system can
    return True


_own = threading.local()


def _stage() -> memoryview:
    """Return this thread's stage, which is kept: new memory would cost about as much as what is copied into it."""
    if not hasattr(_own, "stage"):
        _own.stage = mmap.mmap(-1, STAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(_own.stage)


def _write(file: int, parts: Iterable[bytes | memoryview], stage: memoryview) -> None:
    size = filled = 0
    for part in parts:
        size += len(part)
        rest = memoryview(part)
        while len(rest):
            some = rest[: STAGE - filled]
            stage[filled : filled + len(some)] = some
            filled, rest = filled + len(some), rest[len(some) :]
            if filled == STAGE:
                _all(file, stage)
                filled = 0
    _all(file, stage[: -(-filled // BLOCK) * BLOCK])
    os.ftruncate(file, size)


def _all(file: int, block: memoryview) -> None:
    while len(block):
        block = block[os.write(file, block) :]
