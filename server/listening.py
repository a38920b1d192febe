"""The coordinator's gRPC server: its services, health, and the port."""

import grpc
from grpc_health.v1.health import aio as health

from protos import alignment_pb2, alignment_pb2_grpc, coordinator_pb2
from protos.wire import add_coordinator
from server.alignment import AlignmentService
from server.service import CoordinatorService, Run
from vfl.config import RunConfig
from vfl.net.network import add_health, add_port, server_options, statuses
from vfl.net.pace import Pace
from vfl.net.tls import Identity


async def start_server(config: RunConfig, run: Run, listen: str, tls: Identity | None) -> tuple[grpc.aio.Server, str]:
    """Let workers call; return the server and its address."""
    federation = config.federation
    server = grpc.aio.server(
        options=server_options(federation.parties, federation.silence_timeout),
        interceptors=[Pace(federation.round_timeout)],
    )
    add_coordinator(CoordinatorService(run, tls is not None), server)
    names = [coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"].full_name]
    if config.aligns:
        aligning = AlignmentService(
            federation.workers, tls is not None, federation.join_timeout, lambda: bool(run.run_id)
        )
        alignment_pb2_grpc.add_AlignmentServicer_to_server(aligning, server)
        names.append(alignment_pb2.DESCRIPTOR.services_by_name["Alignment"].full_name)
    checks = health.HealthServicer()
    add_health(server, checks, names)
    for name, status in statuses(names):
        await checks.set(name, status)
    port = add_port(server, listen, tls)
    await server.start()
    return server, f"{listen.rpartition(':')[0]}:{port}"
