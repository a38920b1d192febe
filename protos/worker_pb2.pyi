from protos import tensors_pb2 as _tensors_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SwapPart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: SwapHeader
    chunk: _tensors_pb2.Chunk
    def __init__(self, header: _Optional[_Union[SwapHeader, _Mapping]] = ..., chunk: _Optional[_Union[_tensors_pb2.Chunk, _Mapping]] = ...) -> None: ...

class SwapHeader(_message.Message):
    __slots__ = ("run_id", "worker", "round", "bundle", "rows_digest")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    ROWS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    worker: int
    round: int
    bundle: _tensors_pb2.Bundle
    rows_digest: bytes
    def __init__(self, run_id: _Optional[str] = ..., worker: _Optional[int] = ..., round: _Optional[int] = ..., bundle: _Optional[_Union[_tensors_pb2.Bundle, _Mapping]] = ..., rows_digest: _Optional[bytes] = ...) -> None: ...
