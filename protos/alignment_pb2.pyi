from protos import coordinator_pb2 as _coordinator_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AlignPart(_message.Message):
    __slots__ = ("header", "hashes")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    header: AlignHeader
    hashes: bytes
    def __init__(self, header: _Optional[_Union[AlignHeader, _Mapping]] = ..., hashes: _Optional[bytes] = ...) -> None: ...

class AlignHeader(_message.Message):
    __slots__ = ("protocol_version", "worker", "ids")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    worker: int
    ids: int
    def __init__(self, protocol_version: _Optional[int] = ..., worker: _Optional[int] = ..., ids: _Optional[int] = ...) -> None: ...

class PassPart(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: PassHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[PassHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PassHeader(_message.Message):
    __slots__ = ("protocol_version", "worker", "step", "bytes")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    worker: int
    step: int
    bytes: int
    def __init__(self, protocol_version: _Optional[int] = ..., worker: _Optional[int] = ..., step: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("worker", "features")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    worker: int
    features: int
    def __init__(self, worker: _Optional[int] = ..., features: _Optional[int] = ...) -> None: ...
