"""gRPC the way every party uses it: the same limits and keep-alive, and how another party is reached."""

import time
import weakref
from collections.abc import Callable
from typing import Any

import grpc

from vfl import limits
from vfl.config import SILENCE_SECONDS
from vfl.errors import UserError
from vfl.net.handshake import RETRY_SECONDS, meet, tls_at
from vfl.net.tls import Identity, Role

PROTOCOL_VERSION = 3

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES),
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES),
    # No party compresses, so nothing is unpacked: a small message cannot become a large one.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # How often a party pings a server is its own silence_timeout's affair: the server accepts two pings a second.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    # A party that waits for another to come up, or back, tries again at least every two seconds.
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
        ("grpc.http2.ping_timeout_ms", answered),  # without this gRPC waits a minute, in spite of the line above
    ]


POLL_SECONDS = 0.3
"""gRPC polls a channel's state in a thread for 0.2 s more after a wait for it; closed meanwhile, that thread raises."""
_WAITED: "weakref.WeakKeyDictionary[grpc.Channel, float]" = weakref.WeakKeyDictionary()
"""When each channel was last waited for."""


def reach(
    address: str,
    role: Role,
    tls: Identity | None,
    timeout: float,
    *,
    silence: float = SILENCE_SECONDS,
    stopped: Callable[[], bool] = lambda: False,
) -> grpc.Channel:
    """Connect to another party once it answers; TimeoutError when it does not, a sentence when it is the wrong one.

    After `silence` seconds without a sign of life the connection counts as lost. Once `stopped` returns True the caller
    does not want it any more, and the time is up.
    """
    deadline = time.monotonic() + timeout
    options = noticing(silence)
    if tls is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(address, meet(address, role, tls, timeout, stopped=stopped), options=options)
    try:
        while not _ready(channel, min(limits.LOOK_SECONDS, max(0.0, deadline - time.monotonic())), stopped):
            if not stopped() and tls is None and tls_at(address):
                raise UserError(f"{role} at {address} speaks TLS: give --tls DIR here too", code="E61")
            if time.monotonic() >= deadline or stopped():
                raise TimeoutError
    except BaseException:
        hang_up(channel)
        raise
    return channel


def hang_up(channel: grpc.Channel) -> None:
    """Close a channel once gRPC's thread no longer polls its state: closed earlier, that thread prints a traceback."""
    time.sleep(max(0.0, _WAITED.pop(channel, 0.0) + POLL_SECONDS - time.monotonic()))
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
        _WAITED[channel] = time.monotonic()


def sentence(error: grpc.RpcError) -> str:
    """Return what a failed call says, in words."""
    code, details = error.code(), error.details()
    return limits.plain(details) if details else f"{code.name}"
