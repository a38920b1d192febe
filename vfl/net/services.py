"""A party's gRPC server: its services, health and reflection beside them, and the port."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health import aio
from grpc_reflection.v1alpha import reflection

from protos.wire import add_service
from vfl import limits
from vfl.config import SILENCE_SECONDS
from vfl.errors import UserError
from vfl.net.network import noticing
from vfl.net.tls import Identity


async def start_server(
    server: grpc.aio.Server, services: Mapping[ServiceDescriptor, object], listen: str, tls: Identity | None
) -> int:
    """Let a server answer for services at an address, HOST:PORT; return its port."""
    for service, servicer in services.items():
        add_service(server, service, servicer)
    names = [service.full_name for service in services]
    checks = aio.HealthServicer()
    add_health(server, checks, names)
    for name, status in statuses(names):
        await checks.set(name, status)
    port = add_port(server, listen, tls)
    await server.start()
    return port


async def end_server(server: grpc.aio.Server, grace: float) -> None:
    """Stop a server, and wait for the calls that it cut off: an event loop closed before them prints a warning."""
    await server.stop(grace)
    cut_off = asyncio.all_tasks() - {asyncio.current_task()}
    if cut_off:
        await asyncio.wait(cut_off, timeout=1.0)


def server_options(workers: int, silence: float = SILENCE_SECONDS) -> list[tuple[str, Any]]:
    """Return the options of a server that so many workers call; they bound what strangers can do there too."""
    return [
        *noticing(silence),
        ("grpc.max_allowed_incoming_connections", 2 * workers + limits.SPARE_CONNECTIONS),
        ("grpc.max_concurrent_streams", limits.STREAMS),
        ("grpc.server_handshake_timeout_ms", int(1000 * limits.HANDSHAKE_SECONDS)),
        ("grpc.max_connection_idle_ms", int(1000 * limits.IDLE_SECONDS)),
    ]


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

    Of health only `Check` is served: a `Watch` never ends, and would hold one of the connection's calls for good.
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
