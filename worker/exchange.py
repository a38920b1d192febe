"""Worker to worker: outputs go to the label holder, their gradients come back. The coordinator is not on this path."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import grpc
import torch
from torch import Tensor

from protos.codec import ALIGNMENT, Assembler, CodecError, describe, raw_bytes
from protos.wire import EXCHANGE_SERVICE, Stub
from protos.worker_pb2 import SwapHeader, SwapPart
from vfl import limits
from vfl.config import SILENCE_SECONDS, RunConfig
from vfl.errors import RunFailedError
from vfl.net.handshake import HungUpError
from vfl.net.network import hang_up, reach, sentence
from vfl.net.pace import Pace
from vfl.net.services import end_server, server_options, start_server
from vfl.net.tls import Identity, ImpostorError, Role, check_caller
from worker.rendezvous import ExchangeError, Rendezvous, SupersededError, rows_digest, swap_parts

T = TypeVar("T")


class WorkerServer:
    """A worker's gRPC server from its making to `stop`: the exchange, where this worker holds the labels, and health.

    It has an event loop in a thread of its own: however slow a caller is, it holds up neither rounds nor other callers.
    """

    def __init__(
        self, config: RunConfig, worker: int, rendezvous: Rendezvous, *, listen: str, tls: Identity | None = None
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="peers")
        self._thread.start()
        federation = config.federation
        timeout, holds = federation.round_timeout, config.topology.serves_peers(worker)
        try:
            self._server = self._do(_new_server(config.topology.parties, federation.silence_timeout, timeout))
            service = ExchangeService(rendezvous, worker, holds_labels=holds, timeout=timeout, tls=tls is not None)
            self.port = self._do(start_server(self._server, {EXCHANGE_SERVICE: service}, listen, tls))
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


async def _new_server(workers: int, silence: float, timeout: float) -> grpc.aio.Server:
    """Return a server of the event loop that runs this."""
    pace = Pace(min(limits.RECEIVE_SECONDS, timeout))
    return grpc.aio.server(options=server_options(workers, silence), interceptors=[pace])


class ExchangeService:
    """The label holder's side of the exchange."""

    def __init__(
        self, rendezvous: Rendezvous, worker: int, *, holds_labels: bool, timeout: float, tls: bool = False
    ) -> None:
        self._rendezvous = rendezvous
        self._holds_labels, self._tls = holds_labels, tls
        self._worker = worker
        self._timeout = timeout
        self._under_way: set[tuple[int, str]] = set()
        """Workers and runs whose output is being received: one at a time, else a peer could take up any memory."""

    async def Swap(self, request_iterator: AsyncIterator[SwapPart], context: Any) -> AsyncIterator[SwapPart]:
        """Take a peer's output, answer with the gradient of it."""
        if not self._holds_labels:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"worker {self._worker} is not the label holder")
        mine: set[tuple[int, str]] = set()
        try:
            header, output = await self._receive(request_iterator, context, mine)
            parts = await self._rendezvous.bring(header, output, self._timeout)
            del output
        except CodecError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except ImpostorError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except RunFailedError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except SupersededError:
            await context.abort(grpc.StatusCode.ABORTED, "the round is begun anew")
        finally:
            self._under_way -= mine
        for part in parts:
            yield part

    async def _receive(
        self, parts: AsyncIterator[SwapPart], context: Any, mine: set[tuple[int, str]]
    ) -> tuple[SwapHeader, Tensor]:
        """Return a peer's output; `mine` then names the exchange, which the caller removes from those under way."""
        first = await anext(aiter(parts), None)
        if first is None or first.WhichOneof("part") != "header":
            raise CodecError("an exchange begins with a header")
        header = first.header
        if self._tls:
            check_caller(context, header.worker)
        if not await self._rendezvous.wait_open(header.run_id):
            raise CodecError("this exchange belongs to another run")
        if header.worker not in self._rendezvous.widths:
            raise CodecError(f"worker {header.worker} is no peer of this label holder")
        self._check_announced(header)
        if (header.worker, header.run_id) in self._under_way:
            raise CodecError(f"an exchange of worker {header.worker} is under way already")
        mine.add((header.worker, header.run_id))
        self._under_way |= mine
        self._rendezvous.count(first)
        assembler = Assembler(header.bundle, limits.OUTPUT_BYTES)
        async for part in parts:
            self._rendezvous.count(part)
            _add(assembler, part)
        return header, assembler.finish()["output"]

    def _check_announced(self, header: SwapHeader) -> None:
        """Make sure that what follows is an output of this run's model, before memory is taken for it."""
        width, samples = self._rendezvous.widths[header.worker], self._rendezvous.samples
        announced = describe(header.bundle)
        dtype, shape = announced.get("output", (None, ()))
        if len(announced) != 1 or dtype != torch.float32 or len(shape) != 2 or shape[1] != width or shape[0] > samples:
            wanted = f"one float32 tensor `output` of shape (batch, {width}), of at most {samples} samples"
            raise CodecError(f"worker {header.worker} must send {wanted}")


class Peer:
    """The other workers' side: a line to the label holder."""

    def __init__(
        self,
        address: str,
        run_id: str,
        worker: int,
        *,
        holder: Role,
        timeout: float,
        tls: Identity | None = None,
        silence: float = SILENCE_SECONDS,
        out_of_date: Callable[[], bool] = lambda: False,
    ) -> None:
        """Reach the label holder before the first round needs it; SupersededError once the start is `out_of_date`."""
        self._address, self._run_id, self._worker, self._timeout = address, run_id, worker, timeout
        self._lock = threading.Lock()
        self._call: grpc.Call | None = None
        self._superseded = False
        patience = min(limits.REACH_SECONDS, timeout / 2)
        try:
            self._channel = reach(address, holder, tls, patience, silence=silence, stopped=out_of_date)
        except HungUpError as error:
            raise ExchangeError(str(error)) from None
        except TimeoutError:
            if out_of_date():
                raise SupersededError from None
            raise ExchangeError(
                f"cannot reach the label holder at {address}: start the label holder with "
                f"--listen and --advertise set to an address that the other workers can reach, and open that port"
            ) from None
        self._stub = Stub(self._channel, EXCHANGE_SERVICE)

    def swap(self, number: int, rows: Tensor, output: Tensor) -> Tensor | None:
        """Send this worker's output for a round's rows; return the gradient of it."""
        parts = swap_parts(self._run_id, self._worker, number, {"output": output}, rows=rows_digest(rows))
        try:
            answers = self._stub.Swap(parts, timeout=self._timeout)
            with self._lock:
                self._call = answers
            if self._superseded:
                answers.cancel()
            return gradient_of(output, answers)
        except grpc.RpcError as error:
            if self._superseded:
                raise SupersededError from None
            failed = f"the exchange with the label holder at {self._address} failed in round {number}"
            raise ExchangeError(f"{failed}: {sentence(error)}") from None
        except CodecError as error:
            broken = f"the label holder at {self._address} sent a broken answer in round {number}"
            raise RunFailedError(f"{broken}: {error}") from None

    def supersede(self) -> None:
        """End the exchange that is under way, and any that would follow: the round is to be done again."""
        with self._lock:
            self._superseded = True
            call = self._call
        if call is not None:
            call.cancel()

    def close(self) -> None:
        """Hang up."""
        hang_up(self._channel)


def gradient_of(output: Tensor, answers: Iterator[SwapPart]) -> Tensor | None:
    """Return the gradient of an output that the label holder answers with; None if the round only evaluates."""
    first = next(answers, None)
    if first is None or first.WhichOneof("part") != "header":
        raise CodecError("the answer begins without a header")
    # The gradient of an output is no larger than the output.
    assembler = Assembler(first.header.bundle, raw_bytes([output]) + ALIGNMENT)
    for part in answers:
        _add(assembler, part)
    gradient = assembler.finish().get("gradient")
    if gradient is not None and (gradient.shape, gradient.dtype) != (output.shape, output.dtype):
        raise CodecError(f"a gradient of shape {tuple(gradient.shape)} to an output of shape {tuple(output.shape)}")
    return gradient


def _add(assembler: Assembler, part: SwapPart) -> None:
    """Take the next message of an exchange."""
    if part.WhichOneof("part") != "chunk":
        raise CodecError("only chunks follow the header")
    assembler.add(part.chunk.offset, part.chunk.data)
