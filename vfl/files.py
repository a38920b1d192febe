"""Files whose size is not ours to choose."""

import errno
import os
from pathlib import Path


def read_bounded(path: Path, limit: int) -> bytes:
    """Return what a file holds; OSError when that is more than `limit` bytes, or the file has no end."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"{os.strerror(errno.EFBIG)} (the limit is {limit} bytes)", str(path))
    return data
