"""Files whose size is not ours to choose."""

import errno
import os
import stat
from pathlib import Path

PRIVATE, PRIVATE_FOLDER = 0o600, 0o700
"""Modes of what holds people's data, or would give them away."""


def read_bounded(path: Path, limit: int) -> bytes:
    """Return what a file holds; OSError when that is more than `limit` bytes, or the file has no end."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"{os.strerror(errno.EFBIG)} (the limit is {limit} bytes)", str(path))
    return data


def refuse_irregular(path: Path) -> None:
    """Raise OSError for what is no plain file: a pipe or a device among recorded files would be read for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a plain file", str(path))


def make_private(path: Path) -> Path:
    """Make an empty file that only its owner can read, whatever the umask, and was there before; return its path."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    os.fchmod(opened, PRIVATE)
    os.close(opened)
    return path
