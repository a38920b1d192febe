"""Tensors to bytes and back: a bundle is announced, checked, and then filled chunk by chunk."""

import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from protos.tensors_pb2 import Bundle, Chunk, DType, TensorSpec
from vfl.limits import CHUNK_BYTES, DIMENSIONS, ELEMENTS, NAME_CHARACTERS, TENSORS

ALIGNMENT = 8

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("tensors travel as little-endian bytes, and this machine is big-endian")

_DTYPES = {
    torch.float32: DType.DTYPE_FLOAT32,
    torch.float64: DType.DTYPE_FLOAT64,
    torch.float16: DType.DTYPE_FLOAT16,
    torch.bfloat16: DType.DTYPE_BFLOAT16,
    torch.int64: DType.DTYPE_INT64,
    torch.int32: DType.DTYPE_INT32,
    torch.uint8: DType.DTYPE_UINT8,
    torch.bool: DType.DTYPE_BOOL,
}
_TORCH_DTYPES = {code: dtype for dtype, code in _DTYPES.items()}

Spec = tuple[str, torch.dtype, tuple[int, ...]]
"""A tensor's name, dtype and shape."""


class CodecError(ValueError):
    """The bytes or their announcement are not a bundle of tensors; the text says why."""


def announce(tensors: Mapping[str, Tensor]) -> Bundle:
    """Return the announcement that goes before the chunks of `tensors`."""
    return Bundle(
        tensors=[
            TensorSpec(name=name, dtype=_DTYPES[tensor.dtype], shape=tensor.shape) for name, tensor in tensors.items()
        ]
    )


def chunks(tensors: Iterable[Tensor]) -> Iterator[Chunk]:
    """Cut the bytes of `tensors` into chunks, small tensors sharing one."""
    for offset, _, parts in pieces(tensors):
        yield Chunk(offset=offset, data=b"".join(parts))


def pieces(tensors: Iterable[Tensor]) -> Iterator[tuple[int, int, list[memoryview]]]:
    """Cut the bytes of `tensors` into chunks: the place of each, its length, and its bytes still in the tensors."""
    offset, held = 0, 0
    parts: list[memoryview] = []
    for data in _buffers(tensors):
        start = 0
        while start < len(data):
            part = data[start : start + CHUNK_BYTES - held]
            parts.append(part)
            start += len(part)
            held += len(part)
            if held == CHUNK_BYTES:
                yield offset, held, parts
                offset, held, parts = offset + held, 0, []
    if held:
        yield offset, held, parts


class Assembler:
    """Fills an announced bundle from its chunks. Check the announcement first: its size is allocated here."""

    def __init__(self, bundle: Bundle, limit_bytes: int) -> None:
        self._specs = _read_specs(bundle)
        self._size = sum(_padded(_nbytes(dtype, shape)) for _, dtype, shape in self._specs)
        if self._size > limit_bytes:
            raise CodecError(f"the bundle announces {self._size} bytes, the limit here is {limit_bytes}")
        self._buffer: memoryview | bytes = b""
        self._filled = 0

    @property
    def complete(self) -> bool:
        """Whether all announced bytes are here."""
        return self._filled == self._size

    def add(self, offset: int, data: bytes | memoryview) -> None:
        """Take the next chunk, in order."""
        if offset != self._filled:
            raise CodecError(f"a chunk starts at byte {offset}, expected {self._filled}")
        if not len(data) and not self.complete:
            raise CodecError("a chunk holds nothing")  # such chunks could come for ever
        end = self._filled + len(data)
        if end > self._size:
            raise CodecError(f"the chunks hold more than the {self._size} bytes announced")
        if len(data) == self._size and isinstance(data, bytes):
            self._buffer = data  # the whole bundle in one chunk: the tensors look at the received bytes
        else:
            if not isinstance(self._buffer, memoryview):
                self._buffer = torch.empty(self._size, dtype=torch.uint8).numpy().data  # not zeroed first
            self._buffer[self._filled : end] = data
        self._filled = end

    def finish(self) -> dict[str, Tensor]:
        """Return the tensors, which share the received memory; treat them as read-only."""
        if not self.complete:
            raise CodecError(f"the chunks end after {self._filled} of the {self._size} bytes announced")
        tensors = {}
        offset = 0
        for name, dtype, shape in self._specs:
            tensors[name] = _view(self._buffer, offset, dtype, shape)
            offset += _padded(_nbytes(dtype, shape))
        return tensors


def raw_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the size of the tensors themselves, without announcement or framing."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def describe(bundle: Bundle) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Return what a bundle announces, by tensor name."""
    return {name: (dtype, shape) for name, dtype, shape in _read_specs(bundle)}


def _read_specs(bundle: Bundle) -> list[Spec]:
    if len(bundle.tensors) > TENSORS:
        raise CodecError(f"the bundle announces {len(bundle.tensors)} tensors, the limit is {TENSORS}")
    specs = [_read_spec(spec) for spec in bundle.tensors]
    twice = [name for name, count in Counter(name for name, _, _ in specs).items() if count > 1]
    if twice:
        raise CodecError(f"the bundle names a tensor twice: {', '.join(twice[:5])}")
    return specs


def _read_spec(spec: TensorSpec) -> Spec:
    """Check an announcement before anything is computed from it: its numbers may be anything."""
    if len(spec.name) > NAME_CHARACTERS or not spec.name.isprintable():
        raise CodecError(f"the bundle has a name that is no text of at most {NAME_CHARACTERS} characters")
    dtype = _TORCH_DTYPES.get(spec.dtype)
    if dtype is None:
        raise CodecError(f"{spec.name} has the unknown dtype {spec.dtype}")
    if len(spec.shape) > DIMENSIONS:
        raise CodecError(f"{spec.name} has {len(spec.shape)} dimensions, the limit is {DIMENSIONS}")
    # A dimension of 0 makes the size 0, but not the other dimensions harmless.
    if math.prod(max(size, 1) for size in spec.shape) > ELEMENTS:
        raise CodecError(f"{spec.name} has shape {tuple(spec.shape)}, the limit is {ELEMENTS} elements")
    return spec.name, dtype, tuple(spec.shape)


def _nbytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype.itemsize


def _padded(size: int) -> int:
    return size + -size % ALIGNMENT


def _buffers(tensors: Iterable[Tensor]) -> Iterator[memoryview]:
    for tensor in tensors:
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().data
        yield data
        yield memoryview(bytes(_padded(len(data)) - len(data)))


def _view(buffer: bytes | memoryview, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=dtype)
    if isinstance(buffer, memoryview):
        return torch.frombuffer(buffer, dtype=dtype, count=math.prod(shape), offset=offset).reshape(shape)
    with warnings.catch_warnings():
        # torch warns that received bytes are not writable; they are only read.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(buffer, dtype=dtype, count=math.prod(shape), offset=offset).reshape(shape)
