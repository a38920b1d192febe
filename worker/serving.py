"""A worker's gRPC server, on an event loop in a thread of its own: however slow a caller is, it holds up nobody."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
from grpc_health.v1.health import aio as health

from protos import worker_pb2, worker_pb2_grpc
from vfl import limits
from vfl.config import RunConfig
from vfl.net.network import add_health, add_port, end_server, server_options, statuses
from vfl.net.pace import Pace
from vfl.net.tls import Identity
from worker.exchange import ExchangeService
from worker.rendezvous import Rendezvous

T = TypeVar("T")


class WorkerServer:
    """Listens from its making to `stop`: the exchange, where this worker holds the labels, and health."""

    def __init__(self, config: RunConfig, worker: int, listen: str, tls: Identity | None, meeting: Rendezvous) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="peers")
        self._thread.start()
        federation = config.federation
        timeout, holds_labels = federation.round_timeout, worker == federation.holder
        try:
            self._server = self._do(_made(federation.parties, federation.silence_timeout, timeout))
            service = ExchangeService(meeting, holds_labels, worker, timeout, tls is not None)
            self.port = self._do(_listening(self._server, service, listen, tls))
        except BaseException:
            self._end_loop()
            raise

    def stop(self) -> None:
        """Let the address go, and the thread."""
        self._do(end_server(self._server, grace=1.0))
        self._end_loop()

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _made(workers: int, silence: float, timeout: float) -> grpc.aio.Server:
    pace = Pace(min(limits.RECEIVE_SECONDS, timeout))
    return grpc.aio.server(options=server_options(workers, silence), interceptors=[pace])


async def _listening(server: grpc.aio.Server, service: ExchangeService, listen: str, tls: Identity | None) -> int:
    worker_pb2_grpc.add_ExchangeServicer_to_server(service, server)
    names = [worker_pb2.DESCRIPTOR.services_by_name["Exchange"].full_name]
    checks = health.HealthServicer()
    add_health(server, checks, names)
    for name, status in statuses(names):
        await checks.set(name, status)
    port = add_port(server, listen, tls)
    await server.start()
    return port
