from protos import coordinator_pb2 as _coordinator_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Party(_message.Message):
    __slots__ = ("versions", "settings", "time")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.ScalarMap[str, str]
    settings: _containers.ScalarMap[str, str]
    time: float
    def __init__(self, versions: _Optional[_Mapping[str, str]] = ..., settings: _Optional[_Mapping[str, str]] = ..., time: _Optional[float] = ...) -> None: ...

class CompareRequest(_message.Message):
    __slots__ = ("worker", "party", "join", "address")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PARTY_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    worker: int
    party: Party
    join: _coordinator_pb2.JoinRequest
    address: str
    def __init__(self, worker: _Optional[int] = ..., party: _Optional[_Union[Party, _Mapping]] = ..., join: _Optional[_Union[_coordinator_pb2.JoinRequest, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class CompareReply(_message.Message):
    __slots__ = ("party", "refusal", "label_holder_address")
    PARTY_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    LABEL_HOLDER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    party: Party
    refusal: str
    label_holder_address: str
    def __init__(self, party: _Optional[_Union[Party, _Mapping]] = ..., refusal: _Optional[str] = ..., label_holder_address: _Optional[str] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("worker", "data")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    worker: int
    data: bytes
    def __init__(self, worker: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("check", "level", "text")
    CHECK_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    check: str
    level: str
    text: str
    def __init__(self, check: _Optional[str] = ..., level: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("worker", "findings")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    worker: int
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, worker: _Optional[int] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class ReportReceipt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
