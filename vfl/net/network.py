"""gRPC the way every party uses it: the same limits, keep-alive, health and reflection."""

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection

from vfl import limits
from vfl.config import SILENCE_SECONDS
from vfl.errors import UserError
from vfl.net.handshake import RETRY_SECONDS, meet, speaks_tls
from vfl.net.tls import Identity, Role

PROTOCOL_VERSION = 3

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES),
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES),
    # Nobody here compresses, so nothing is unpacked: a small message cannot become a large one.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A server does not mind how often others ask whether it is there: that is for their silence_timeout to say.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    # Whoever waits for another to come up, or back, looks often enough to be there in time.
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Uploads are megabytes: large frames and windows, so that neither framing nor window updates cost processor time.
    ("grpc.http2.max_frame_size", 1 << 22),
    ("grpc.http2.lookahead_bytes", 1 << 24),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.write_buffer_size", 1 << 22),
    # Two servers must not share a port by accident.
    ("grpc.so_reuseport", 0),
]


def noticing(silence: float) -> list[tuple[str, Any]]:
    """Return the options with which a peer that gives no sign of life is noticed within so many seconds."""
    asked, answered = int(silence * 2000 / 3), int(silence * 1000 / 3)
    return [
        *OPTIONS,
        ("grpc.keepalive_time_ms", asked),
        ("grpc.keepalive_timeout_ms", answered),
        ("grpc.http2.ping_timeout_ms", answered),  # else a minute, whatever the line above says
    ]


def server_options(workers: int, silence: float = SILENCE_SECONDS) -> list[tuple[str, Any]]:
    """Return the options of a server that so many workers call: what strangers do there has its limits too."""
    return [
        *noticing(silence),
        ("grpc.max_allowed_incoming_connections", 2 * workers + limits.SPARE_CONNECTIONS),
        ("grpc.max_concurrent_streams", limits.STREAMS),
        ("grpc.server_handshake_timeout_ms", int(1000 * limits.HANDSHAKE_SECONDS)),
        ("grpc.max_connection_idle_ms", int(1000 * limits.IDLE_SECONDS)),
    ]


LOOKS_SECONDS = 0.3
"""For how long gRPC looks at a channel's state after somebody waited for it, and some more."""
_LOOKED: "weakref.WeakKeyDictionary[grpc.Channel, float]" = weakref.WeakKeyDictionary()
"""When that was."""


def reach(
    address: str,
    role: Role,
    tls: Identity | None,
    timeout: float,
    silence: float = SILENCE_SECONDS,
    stopped: Callable[[], bool] = lambda: False,
) -> grpc.Channel:
    """Connect to another party once it answers; TimeoutError when it does not, a sentence when it is the wrong one.

    After `silence` seconds without a sign of life the connection counts as lost. Once `stopped` says so, nobody wants
    it any more, and the time is up.
    """
    deadline = time.monotonic() + timeout
    options = noticing(silence)
    if tls is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(address, meet(address, role, tls, timeout, stopped), options=options)
    try:
        while not _ready(channel, min(limits.LOOK_SECONDS, max(0.0, deadline - time.monotonic())), stopped):
            if not stopped() and tls is None and speaks_tls(address):
                raise UserError(f"{role} at {address} speaks TLS: give --tls DIR here too")
            if time.monotonic() >= deadline or stopped():
                raise TimeoutError
    except BaseException:
        hang_up(channel)
        raise
    return channel


def hang_up(channel: grpc.Channel) -> None:
    """Close a channel, but not while gRPC still looks at its state: its thread would end in a traceback."""
    time.sleep(max(0.0, _LOOKED.pop(channel, 0.0) + LOOKS_SECONDS - time.monotonic()))
    channel.close()


def _ready(channel: grpc.Channel, seconds: float, stopped: Callable[[], bool]) -> bool:
    deadline, ready = time.monotonic() + seconds, grpc.channel_ready_future(channel)
    try:
        while True:
            left = deadline - time.monotonic()
            try:
                ready.result(timeout=max(0.0, min(RETRY_SECONDS, left)))
                return True
            except grpc.FutureTimeoutError:
                if left <= RETRY_SECONDS or stopped():
                    ready.cancel()
                    return False
    finally:
        _LOOKED[channel] = time.monotonic()


def add_port(server: Any, listen: str, tls: Identity | None) -> int:
    """Let a server listen, in plain text or TLS; return its port."""
    try:
        if tls is None:
            return int(server.add_insecure_port(listen))
        return int(server.add_secure_port(listen, tls.server_credentials()))
    except RuntimeError:
        raise UserError(f"--listen {listen}: this address cannot be bound; is the port taken?") from None


def add_health(server: Any, servicer: Any, services: Sequence[str]) -> None:
    """Put the standard health and reflection services beside the named ones, all of them serving.

    Of health there is `Check` alone: a `Watch` is never answered to the end, and would keep its connection's place.
    """
    check = grpc.unary_unary_rpc_method_handler(
        servicer.Check,
        request_deserializer=health_pb2.HealthCheckRequest.FromString,
        response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"Check": check}),))
    reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)


def statuses(services: Sequence[str]) -> list[tuple[str, Any]]:
    """Return what the health service says of each service and of the whole ("")."""
    return [(name, health_pb2.HealthCheckResponse.SERVING) for name in ("", *services)]


async def end_server(server: grpc.aio.Server, grace: float) -> None:
    """Stop a server, and let what it cut off come to its end: a loop that closes over such a call complains of it."""
    await server.stop(grace)
    cut_off = asyncio.all_tasks() - {asyncio.current_task()}
    if cut_off:
        await asyncio.wait(cut_off, timeout=1.0)


def sentence(error: grpc.RpcError) -> str:
    """Return what a failed call says, in words."""
    code, details = error.code(), error.details()
    return limits.plain(details) if details else f"{code.name}"
