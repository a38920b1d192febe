"""gRPC the way every party uses it: the same limits, keep-alive, health and reflection."""

from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos.codec import MESSAGE_LIMIT_BYTES
from vfl.errors import UserError

PROTOCOL_VERSION = 2

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    # A peer that vanished without closing its connection is noticed within half a minute.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # Uploads are megabytes: large frames and windows, so that neither framing nor window updates cost processor time.
    ("grpc.http2.max_frame_size", 1 << 22),
    ("grpc.http2.lookahead_bytes", 1 << 24),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.write_buffer_size", 1 << 22),
    # Two servers must not share a port by accident.
    ("grpc.so_reuseport", 0),
]


def open_channel(address: str) -> grpc.Channel:
    """Connect to another party."""
    return grpc.insecure_channel(address, options=OPTIONS)


def add_health(server: Any, servicer: Any, services: Sequence[str]) -> None:
    """Put the standard health and reflection services beside the named ones, all of them serving."""
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)


def statuses(services: Sequence[str]) -> list[tuple[str, Any]]:
    """Return what the health service says of each service and of the whole ("")."""
    return [(name, health_pb2.HealthCheckResponse.SERVING) for name in ("", *services)]


def sentence(error: grpc.RpcError) -> str:
    """Return what a failed call says, in words."""
    code, details = error.code(), error.details()
    return f"{details}" if details else f"{code.name}"


def resolve_device(name: str) -> str:
    """Return the torch device for a config's `device`: auto is cuda where there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device: {name!r} is not to be had here ({str(error).splitlines()[0]}); use auto") from None
    return name
