"""Safetensors files with one copy each way: overwritten in place, read into memory of the reader's own.

A file that is kept has a checksum over all its bytes. It stands in the file's own header; its 64 digits are taken as
zeros when it is computed.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vfl.errors import UserError
from vfl.files import PRIVATE, refuse_irregular
from vfl.files.direct import write_directly
from vfl.limits import plain

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


class DamagedError(UserError):
    """A file that was changed or cut since it was written."""


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


def read_tensors(path: Path, checked: bool) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a file's tensors and its notes about them, as copies: the file may change or go afterwards."""
    try:
        if checked:
            _check(path)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise DamagedError(f"{path} is not a file of tensors: {plain(str(error))}") from None


def _check(path: Path) -> None:
    refuse_irregular(path)
    with path.open("rb") as file:
        head = file.read(_SUM_AT + len(_NO_SUM))
        digest = hashlib.sha256(head[:_SUM_AT] + _NO_SUM)
        hashlib.file_digest(file, lambda: digest)
    if head[_SUM_AT:] != digest.hexdigest().encode():
        raise DamagedError(f"{path} is damaged: it was cut short or changed, as its checksum does not fit")
