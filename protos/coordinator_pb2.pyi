from protos import tensors_pb2 as _tensors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Purpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PURPOSE_UNSPECIFIED: _ClassVar[Purpose]
    PURPOSE_TRAIN: _ClassVar[Purpose]
    PURPOSE_EVALUATE: _ClassVar[Purpose]
PURPOSE_UNSPECIFIED: Purpose
PURPOSE_TRAIN: Purpose
PURPOSE_EVALUATE: Purpose

class JoinRequest(_message.Message):
    __slots__ = ("protocol_version", "worker", "slice", "samples", "test_samples", "ids_digest", "classes", "peer_address", "previous_session")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TEST_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    IDS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_SESSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    worker: int
    slice: Slice
    samples: int
    test_samples: int
    ids_digest: bytes
    classes: int
    peer_address: str
    previous_session: str
    def __init__(self, protocol_version: _Optional[int] = ..., worker: _Optional[int] = ..., slice: _Optional[_Union[Slice, _Mapping]] = ..., samples: _Optional[int] = ..., test_samples: _Optional[int] = ..., ids_digest: _Optional[bytes] = ..., classes: _Optional[int] = ..., peer_address: _Optional[str] = ..., previous_session: _Optional[str] = ...) -> None: ...

class Slice(_message.Message):
    __slots__ = ("sample_shape", "start", "stop")
    SAMPLE_SHAPE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    sample_shape: _containers.RepeatedScalarFieldContainer[int]
    start: _containers.RepeatedScalarFieldContainer[int]
    stop: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sample_shape: _Optional[_Iterable[int]] = ..., start: _Optional[_Iterable[int]] = ..., stop: _Optional[_Iterable[int]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("welcome", "start", "parameters", "chunk", "round", "end", "abort")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    start: Start
    parameters: Parameters
    chunk: _tensors_pb2.Chunk
    round: Round
    end: End
    abort: Abort
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., parameters: _Optional[_Union[Parameters, _Mapping]] = ..., chunk: _Optional[_Union[_tensors_pb2.Chunk, _Mapping]] = ..., round: _Optional[_Union[Round, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("session", "protocol_version", "generation")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    session: str
    protocol_version: int
    generation: int
    def __init__(self, session: _Optional[str] = ..., protocol_version: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("run_id", "workers", "label_holder", "label_holder_address", "classes", "output_widths")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LABEL_HOLDER_FIELD_NUMBER: _ClassVar[int]
    LABEL_HOLDER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_WIDTHS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    workers: int
    label_holder: int
    label_holder_address: str
    classes: int
    output_widths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, run_id: _Optional[str] = ..., workers: _Optional[int] = ..., label_holder: _Optional[int] = ..., label_holder_address: _Optional[str] = ..., classes: _Optional[int] = ..., output_widths: _Optional[_Iterable[int]] = ...) -> None: ...

class Parameters(_message.Message):
    __slots__ = ("version", "bundle")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    version: int
    bundle: _tensors_pb2.Bundle
    def __init__(self, version: _Optional[int] = ..., bundle: _Optional[_Union[_tensors_pb2.Bundle, _Mapping]] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("round", "purpose", "parameters_version", "indices")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_VERSION_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    round: int
    purpose: Purpose
    parameters_version: int
    indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, round: _Optional[int] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., parameters_version: _Optional[int] = ..., indices: _Optional[_Iterable[int]] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("rounds",)
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    def __init__(self, rounds: _Optional[int] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class UploadPart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: UploadHeader
    chunk: _tensors_pb2.Chunk
    def __init__(self, header: _Optional[_Union[UploadHeader, _Mapping]] = ..., chunk: _Optional[_Union[_tensors_pb2.Chunk, _Mapping]] = ...) -> None: ...

class UploadHeader(_message.Message):
    __slots__ = ("session", "worker", "round", "gradients", "loss", "peer_bytes", "withheld", "run_id")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    PEER_BYTES_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    session: str
    worker: int
    round: int
    gradients: _tensors_pb2.Bundle
    loss: float
    peer_bytes: int
    withheld: str
    run_id: str
    def __init__(self, session: _Optional[str] = ..., worker: _Optional[int] = ..., round: _Optional[int] = ..., gradients: _Optional[_Union[_tensors_pb2.Bundle, _Mapping]] = ..., loss: _Optional[float] = ..., peer_bytes: _Optional[int] = ..., withheld: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...

class UploadReceipt(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("session", "round", "correct", "total", "loss_sum", "peer_bytes", "run_id")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    PEER_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    session: str
    round: int
    correct: int
    total: int
    loss_sum: float
    peer_bytes: int
    run_id: str
    def __init__(self, session: _Optional[str] = ..., round: _Optional[int] = ..., correct: _Optional[int] = ..., total: _Optional[int] = ..., loss_sum: _Optional[float] = ..., peer_bytes: _Optional[int] = ..., run_id: _Optional[str] = ...) -> None: ...

class EvaluationReceipt(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class Trouble(_message.Message):
    __slots__ = ("session", "run_id", "reason", "leaving")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    session: str
    run_id: str
    reason: str
    leaving: bool
    def __init__(self, session: _Optional[str] = ..., run_id: _Optional[str] = ..., reason: _Optional[str] = ..., leaving: _Optional[bool] = ...) -> None: ...

class TroubleReceipt(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
