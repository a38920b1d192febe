"""Both ends of every RPC, made from the `.proto` files, with messages that carry a chunk spared protobuf's copies.

Gradients are megabytes a round, and protobuf copies a chunk's bytes twice on either side. Here a chunk goes straight
from the tensors into its message, and is looked at where it was received. Every other message, and a chunk in any
unusual (but valid) encoding, goes through protobuf itself; on the wire all are what protobuf writes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from torch import Tensor

from protos import alignment_pb2, coordinator_pb2, doctor_pb2, worker_pb2
from protos.codec import pieces
from protos.coordinator_pb2 import Order, UploadPart
from protos.tensors_pb2 import Chunk

COORDINATOR_SERVICE: ServiceDescriptor = coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"]
ALIGNMENT_SERVICE: ServiceDescriptor = alignment_pb2.DESCRIPTOR.services_by_name["Alignment"]
EXCHANGE_SERVICE: ServiceDescriptor = worker_pb2.DESCRIPTOR.services_by_name["Exchange"]
DOCTOR_SERVICE: ServiceDescriptor = doctor_pb2.DESCRIPTOR.services_by_name["Doctor"]


def add_service(server: Any, service: ServiceDescriptor, servicer: object) -> None:
    """Let a server answer every RPC of a service with the servicer's method of that name."""
    missing = [method.name for method in service.methods if not callable(getattr(servicer, method.name, None))]
    if missing:
        raise TypeError(f"{type(servicer).__name__} has no method for {service.full_name}: {', '.join(missing)}")
    handlers = {method.name: _handler(method, getattr(servicer, method.name)) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


class Stub:
    """The caller's end of a service: each RPC is an attribute of that name."""

    def __init__(self, channel: grpc.Channel, service: ServiceDescriptor) -> None:
        for method in service.methods:
            call = getattr(channel, _kind(method))(
                f"/{service.full_name}/{method.name}",
                request_serializer=_writer(method.input_type),
                response_deserializer=_reader(method.output_type),
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        """Refuse an RPC that the service does not have."""
        raise AttributeError(f"there is no RPC {name}")


def _handler(method: MethodDescriptor, behaviour: Callable[..., Any]) -> Any:
    make = getattr(grpc, f"{_kind(method)}_rpc_method_handler")
    return make(
        behaviour, request_deserializer=_reader(method.input_type), response_serializer=_writer(method.output_type)
    )


def _kind(method: MethodDescriptor) -> str:
    """Return gRPC's word for what streams, as in unary_stream."""
    return "_".join("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))


def _reader(message: Descriptor) -> Callable[[bytes], Any]:
    carrier = CARRIERS.get(message.full_name)
    return carrier.read if carrier else GetMessageClass(message).FromString


def _writer(message: Descriptor) -> Callable[[Any], bytes]:
    carrier = CARRIERS.get(message.full_name)
    return carrier.write if carrier else GetMessageClass(message).SerializeToString


M = TypeVar("M", Order, UploadPart)

_OFFSET = Chunk.OFFSET_FIELD_NUMBER << 3
_DATA = Chunk.DATA_FIELD_NUMBER << 3 | 2


@dataclass(frozen=True)
class ChunkView:
    """A received chunk: its place in the bundle, its bytes, and the size of the message that brought it."""

    offset: int
    data: memoryview
    size: int


class Carrier(Generic[M]):
    """One kind of message that may carry a chunk in its field `chunk`."""

    def __init__(self, message: type[M]) -> None:
        self._message: type[M] = message
        self._tag = message.DESCRIPTOR.fields_by_name["chunk"].number << 3 | 2

    def chunks(self, tensors: Iterable[Tensor]) -> Iterator[bytes]:
        """Cut the bytes of `tensors` into encoded messages that carry one chunk each."""
        return _encoded(self._tag, tensors)

    def write(self, message: "M | bytes") -> bytes:
        """Encode a message, unless it is already."""
        return message if isinstance(message, bytes) else message.SerializeToString()

    def read(self, data: bytes) -> "M | ChunkView":
        """Decode a message; one that carries a chunk becomes a view of it."""
        view = self._view(data)
        if view is not None:
            return view
        message: M = self._message.FromString(data)
        if message.HasField("chunk"):
            return ChunkView(message.chunk.offset, memoryview(message.chunk.data), len(data))
        return message

    def _view(self, data: bytes) -> ChunkView | None:
        """Return the chunk of a message encoded just as `chunks` does it; None for any other."""
        if not data or data[0] != self._tag:
            return None
        length, at = _read_varint(data, 1)
        if length != len(data) - at:
            return None
        offset = 0
        if data[at : at + 1] == bytes([_OFFSET]):
            offset, at = _read_varint(data, at + 1)
        if data[at : at + 1] != bytes([_DATA]):
            return None
        length, at = _read_varint(data, at + 1)
        if length != len(data) - at or offset < 0:
            return None
        return ChunkView(offset, memoryview(data)[at:], len(data))


ORDER = Carrier(Order)
UPLOAD = Carrier(UploadPart)
CARRIERS: dict[str, Carrier[Any]] = {"cafe.v1.Order": ORDER, "cafe.v1.UploadPart": UPLOAD}
"""The messages that are written and read this way, in whichever RPC they travel."""


def _encoded(tag: int, tensors: Iterable[Tensor]) -> Iterator[bytes]:
    for offset, length, parts in pieces(tensors):
        head = (bytes([_OFFSET]) + _varint(offset) if offset else b"") + bytes([_DATA]) + _varint(length)
        yield b"".join([bytes([tag]), _varint(len(head) + length), head, *parts])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint and where it ends; -1 where there is none of up to nine bytes."""
    value = 0
    for shift, byte in enumerate(data[at : at + 9]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    return -1, at
