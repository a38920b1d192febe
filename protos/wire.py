"""Messages that carry a chunk, written and read without protobuf's copies; on the wire they are what protobuf writes.

Gradients are megabytes a round, and protobuf copies a chunk's bytes twice on either side. Here a chunk goes straight
from the tensors into its message, and is looked at where it was received. Every other message, and a chunk in any
unusual (but valid) encoding, goes through protobuf itself.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from torch import Tensor

from protos.codec import pieces
from protos.coordinator_pb2 import (
    DESCRIPTOR,
    Evaluation,
    EvaluationReceipt,
    JoinRequest,
    Order,
    Trouble,
    TroubleReceipt,
    UploadPart,
    UploadReceipt,
)
from protos.coordinator_pb2_grpc import CoordinatorServicer, CoordinatorStub
from protos.tensors_pb2 import Chunk

M = TypeVar("M", Order, UploadPart)

SERVICE = DESCRIPTOR.services_by_name["Coordinator"].full_name

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


def coordinator_stub(channel: grpc.Channel) -> CoordinatorStub:
    """Return the generated client, with these encodings where chunks travel."""
    stub = CoordinatorStub(channel)
    stub.Join = channel.unary_stream(
        f"/{SERVICE}/Join", request_serializer=JoinRequest.SerializeToString, response_deserializer=ORDER.read
    )
    stub.Upload = channel.stream_unary(
        f"/{SERVICE}/Upload", request_serializer=UPLOAD.write, response_deserializer=UploadReceipt.FromString
    )
    return stub


def add_coordinator(servicer: CoordinatorServicer, server: grpc.aio.Server) -> None:
    """Add the service to a server, as the generated function does, with these encodings where chunks travel."""
    handlers: dict[str, Any] = {
        "Join": grpc.unary_stream_rpc_method_handler(
            servicer.Join, request_deserializer=JoinRequest.FromString, response_serializer=ORDER.write
        ),
        "Upload": grpc.stream_unary_rpc_method_handler(
            servicer.Upload, request_deserializer=UPLOAD.read, response_serializer=UploadReceipt.SerializeToString
        ),
        "ReportEvaluation": grpc.unary_unary_rpc_method_handler(
            servicer.ReportEvaluation,
            request_deserializer=Evaluation.FromString,
            response_serializer=EvaluationReceipt.SerializeToString,
        ),
        "ReportTrouble": grpc.unary_unary_rpc_method_handler(
            servicer.ReportTrouble,
            request_deserializer=Trouble.FromString,
            response_serializer=TroubleReceipt.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


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
