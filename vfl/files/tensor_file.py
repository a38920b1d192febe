"""Safetensors files with one copy each way: overwritten in place, read into memory of the reader's own.

A file that is kept has a checksum over all its bytes. It stands in the file's own header; its 64 digits are taken as
zeros when it is computed.
"""

import errno
import hashlib
import json
import mmap
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vfl.errors import UserError
from vfl.files import PRIVATE, refuse_irregular
from vfl.limits import JSON_BYTES, plain

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

_CHECKSUM = "sha256"
_NO_SUM = b"0" * 64
_SUM_AT = 8 + len(f'{{"__metadata__": {{"{_CHECKSUM}": "')
"""Where a file's checksum stands: the header's length comes first, and the checksum is the header's first value."""
BLOCK = 4096
"""What writes past the kernel's cache come in multiples of, on every disk in use."""
STAGE = 4 * 1024 * 1024
"""Bytes that are brought together, aligned, before they go to the disk: few enough to stay in a processor's cache."""


class DamagedError(UserError):
    """A file that was changed or cut since it was written."""

    code = "E71"


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str], *, checked: bool = False, direct: bool = False
) -> None:
    """Write a file over what it held before: its cached pages are several times faster to write than new ones.

    `direct` bypasses the kernel's page cache where possible: for files that would take new pages there.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # widest first: all are aligned
    header: dict[str, object] = {"__metadata__": {**({_CHECKSUM: _NO_SUM.decode()} if checked else {}), **about}}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    parts = [tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data for _, tensor in ordered]
    if checked:
        digest = hashlib.sha256(head)
        for part in parts:
            digest.update(part)
        head = head[:_SUM_AT] + digest.hexdigest().encode() + head[_SUM_AT + len(_NO_SUM) :]
    if direct and write_directly(path, [head, *parts]):
        return
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE), "wb") as file:
        file.write(head)
        for part in parts:
            file.write(part)
        file.truncate()


def read_tensors(path: Path, checked: bool, most: int | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a file's tensors and its notes about them, as copies: the file may change or go afterwards.

    A file of more than `most` bytes is refused unread.
    """
    try:
        if most is not None and (size := path.stat(follow_symlinks=False).st_size) > most:
            raise DamagedError(f"{path} has {size} bytes, and a file of this run has {most} at the most")
        if checked:
            _check(path)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise DamagedError(f"{path} is not a file of tensors: {plain(str(error))}") from None


def _check(path: Path) -> None:
    refuse_irregular(path, links=False)
    with path.open("rb") as file:
        length = file.read(8)
        text = file.read(min(int.from_bytes(length, "little"), JSON_BYTES))
        found = _sum_in(text)
        # Whoever wrote the file may have put the checksum anywhere in its header: there it is taken as zeros
        digest = hashlib.sha256(length + text.replace(found, _NO_SUM, 1))
        hashlib.file_digest(file, lambda: digest)
    if found != digest.hexdigest().encode():
        raise DamagedError(f"{path} is damaged: it was cut short or changed, as its checksum does not fit")


def _sum_in(text: bytes) -> bytes:
    """Return the checksum that a header names; one that fits nothing where it names none."""
    try:
        found = json.loads(text)["__metadata__"][_CHECKSUM]
    except (ValueError, KeyError, TypeError, RecursionError):
        return b"none"
    is_sum = isinstance(found, str) and len(found) == len(_NO_SUM) and found.isascii()
    return found.encode() if is_sum else b"none"


def write_directly(path: Path, parts: Iterable[bytes | memoryview]) -> bool:
    """Write a file past the kernel's cache, where new pages cost several times the processor time of the copy itself.

    It is written over what it held before; False where that cannot be done, and it is to be written as usual.
    """
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
