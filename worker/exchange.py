"""Worker to worker: outputs go to the label holder, their gradients come back. The coordinator is not on this path."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import grpc
import torch
from torch import Tensor

from protos import worker_pb2_grpc
from protos.codec import Assembler, CodecError, announce, chunks
from protos.worker_pb2 import SwapHeader, SwapPart
from vfl.errors import RunFailedError
from vfl.handshake import HungUpError
from vfl.network import reach, sentence
from vfl.tls import Identity, ImpostorError, Role, check_caller

OUTPUT_LIMIT_BYTES = 256 << 20
"""The largest output of one worker that the label holder accepts."""

RECEIVE_SECONDS = 60.0
"""How long a peer may take to send its output."""

OPEN_SECONDS = 10.0
"""How long a peer waits for a label holder that has not been told to start yet."""

REACH_SECONDS = 20.0
"""How long a worker tries to reach the label holder before it says so; less where rounds may take less."""


@dataclass(frozen=True)
class _Brought:
    round: int
    output: Tensor
    rows: bytes


class ExchangeError(RunFailedError):
    """An exchange between workers that failed: the round may be done again."""


class SupersededError(Exception):
    """The round that somebody waits for is to be done again, or not at all."""


class Rendezvous:
    """Where the label holder meets its peers: each brings an output for a round and waits for its gradient."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._brought: dict[int, _Brought] = {}
        self._answers: dict[int, tuple[int, list[SwapPart]]] = {}
        self._failure: str | None = None
        self._coming = ""
        self.run_id = ""
        self.widths: dict[int, int] = {}
        self.bytes = 0
        """What was exchanged so far, in both directions."""

    def open(self, run_id: str, widths: Mapping[int, int]) -> None:
        """Let the peers of a run in: their numbers and the length of their outputs."""
        with self._changed:
            self._brought.clear()
            self._answers.clear()
            self._coming, self.run_id, self.widths = run_id, run_id, dict(widths)
            self._failure = None
            self._changed.notify_all()

    def supersede(self, run_id: str) -> None:
        """Wake everybody who waits: the rounds of the run that is open are over, and `run_id` is to come."""
        with self._changed:
            self._coming, self._failure = run_id, None
            self._changed.notify_all()

    def recount(self) -> None:
        """Begin to count the bytes exchanged anew, for a coordinator that has those before."""
        with self._changed:
            self.bytes = 0

    def bring(self, header: SwapHeader, output: Tensor, timeout: float) -> list[SwapPart]:
        """Leave a peer's output and wait for the answer: the gradient of it, nothing when the round only evaluates."""
        worker, number = header.worker, header.round
        with self._changed:
            if self.run_id != header.run_id:
                raise SupersededError
            self._brought[worker] = _Brought(number, output, header.rows_digest)
            self._changed.notify_all()
            self._wait(
                lambda: self._answers.get(worker, (0, []))[0] == number,
                timeout,
                lambda: f"the answer to round {number}",
            )
            return self._answers.pop(worker)[1]

    def gather(self, number: int, rows: Tensor, timeout: float) -> dict[int, Tensor]:
        """Wait until all peers have brought their outputs for these rows."""
        with self._changed:

            def missing() -> list[int]:
                return [m for m in self.widths if m not in self._brought or self._brought[m].round != number]

            self._wait(lambda: not missing(), timeout, lambda: f"the outputs of workers {missing()} for round {number}")
            brought = {m: self._brought.pop(m) for m in self.widths}
        for worker, one in brought.items():
            if one.rows != rows_digest(rows) or len(one.output) != len(rows):
                raise RunFailedError(
                    f"worker {worker} sent outputs for {len(one.output)} samples in round {number} that are not the "
                    f"label holder's {len(rows)}: is the defence `indices` the same (policy, key file) everywhere?"
                )
        return {worker: one.output for worker, one in brought.items()}

    def answer(self, number: int, gradients: Mapping[int, Tensor | None]) -> None:
        """Give each peer the gradient of its output."""
        with self._changed:
            for worker, gradient in gradients.items():
                tensors = {} if gradient is None else {"gradient": gradient}
                parts = list(swap_parts(self.run_id, worker, number, tensors))
                self._answers[worker] = (number, parts)
                self.bytes += sum(part.ByteSize() for part in parts)
            self._changed.notify_all()

    def count(self, part: SwapPart) -> None:
        """Add a message to the bytes exchanged."""
        with self._changed:
            self.bytes += part.ByteSize()

    def fail(self, reason: str) -> None:
        """Wake everybody who waits: the run is over."""
        with self._changed:
            self._failure = self._failure or reason
            self._changed.notify_all()

    def wait_open(self, run_id: str) -> bool:
        """Wait until the label holder itself has been told to start; tell whether it is the caller's run."""
        with self._changed:
            began = time.monotonic()
            # The caller may have heard of a new start first; one that asks for an old run waits in vain, but not long.
            while self.run_id != run_id and not self._failure:
                left = began + (RECEIVE_SECONDS if self._coming == run_id else OPEN_SECONDS) - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return self.run_id == run_id

    def _wait(self, ready: Callable[[], bool], timeout: float, what: Callable[[], str]) -> None:
        deadline = time.monotonic() + timeout
        run_id = self.run_id
        while True:
            if self._coming != run_id:
                raise SupersededError
            if ready():
                return
            if self._failure:
                raise RunFailedError(self._failure)
            left = deadline - time.monotonic()
            if left <= 0:
                raise ExchangeError(f"no sign of {what()} for {timeout:g} s")
            self._changed.wait(left)


class ExchangeService(worker_pb2_grpc.ExchangeServicer):
    """The label holder's side of the exchange."""

    def __init__(
        self, rendezvous: Rendezvous, holds_labels: bool, worker: int, timeout: float, tls: bool = False
    ) -> None:
        self._rendezvous = rendezvous
        self._holds_labels, self._tls = holds_labels, tls
        self._worker = worker
        self._timeout = timeout

    def Swap(self, request_iterator: Iterator[SwapPart], context: grpc.ServicerContext) -> Iterator[SwapPart]:
        """Take a peer's output, answer with the gradient of it."""
        if not self._holds_labels:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"worker {self._worker} is not the label holder")
        # A caller that says nothing must not keep a thread for ever.
        patience = threading.Timer(min(RECEIVE_SECONDS, self._timeout), context.cancel)
        patience.start()
        try:
            header, output = self._receive(request_iterator, context)
            patience.cancel()
            parts = self._rendezvous.bring(header, output, self._timeout)
        except CodecError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except ImpostorError as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except RunFailedError as error:
            context.abort(grpc.StatusCode.ABORTED, str(error))
        except SupersededError:
            context.abort(grpc.StatusCode.ABORTED, "the round is begun anew")
        finally:
            patience.cancel()
        yield from parts

    def _receive(self, parts: Iterator[SwapPart], context: grpc.ServicerContext) -> tuple[SwapHeader, Tensor]:
        first = next(parts, None)
        if first is None or first.WhichOneof("part") != "header":
            raise CodecError("an exchange begins with a header")
        header = first.header
        if self._tls:
            check_caller(context, header.worker)
        if not self._rendezvous.wait_open(header.run_id):
            raise CodecError("this exchange belongs to another run")
        if header.worker not in self._rendezvous.widths:
            raise CodecError(f"worker {header.worker} is no peer of this label holder")
        self._rendezvous.count(first)
        output = read_bundle(header, parts, self._rendezvous.count).get("output")
        width = self._rendezvous.widths[header.worker]
        if output is None or output.dim() != 2 or output.shape[1] != width or output.dtype != torch.float32:
            raise CodecError(f"worker {header.worker} must send one float32 tensor `output` of shape (batch, {width})")
        return header, output


class Peer:
    """The other workers' side: a line to the label holder."""

    def __init__(
        self, address: str, run_id: str, worker: int, timeout: float, holder: Role, tls: Identity | None = None
    ) -> None:
        """Reach the label holder, before the first round depends on it."""
        self._address, self._run_id, self._worker, self._timeout = address, run_id, worker, timeout
        self._lock = threading.Lock()
        self._call: grpc.Call | None = None
        self._superseded = False
        try:
            self._channel = reach(address, holder, tls, min(REACH_SECONDS, timeout / 2))
        except HungUpError as error:
            raise ExchangeError(str(error)) from None
        except TimeoutError:
            raise ExchangeError(
                f"cannot reach the label holder at {address}: start the label holder with "
                f"--listen and --advertise set to an address that the others can reach, and open that port"
            ) from None
        self._stub = worker_pb2_grpc.ExchangeStub(self._channel)

    def swap(self, number: int, rows: Tensor, output: Tensor) -> Tensor | None:
        """Send this worker's output for a round's rows; return the gradient of it."""
        parts = swap_parts(self._run_id, self._worker, number, {"output": output}, rows_digest(rows))
        try:
            answers = self._stub.Swap(parts, timeout=self._timeout)
            with self._lock:
                self._call = answers
            if self._superseded:
                answers.cancel()
            first = next(answers, None)
            if first is None or first.WhichOneof("part") != "header":
                raise CodecError("the answer begins without a header")
            return read_bundle(first.header, answers).get("gradient")
        except grpc.RpcError as error:
            if self._superseded:
                raise SupersededError from None
            raise ExchangeError(
                f"the exchange with the label holder at {self._address} failed in round {number}: {sentence(error)}"
            ) from None
        except CodecError as error:
            raise RunFailedError(
                f"the label holder at {self._address} sent a broken answer in round {number}: {error}"
            ) from None

    def supersede(self) -> None:
        """End the exchange that is under way, and any that would follow: the round is to be done again."""
        with self._lock:
            self._superseded = True
            call = self._call
        if call is not None:
            call.cancel()

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


def rows_digest(rows: Tensor) -> bytes:
    """Return what tells whether two workers computed on the same rows in the same order."""
    return hashlib.sha256(rows.to(torch.int64).numpy().tobytes()).digest()[:8]


def swap_parts(
    run_id: str, worker: int, number: int, tensors: Mapping[str, Tensor], rows: bytes = b""
) -> Iterator[SwapPart]:
    """Put tensors into the messages of an exchange."""
    header = SwapHeader(run_id=run_id, worker=worker, round=number, bundle=announce(tensors), rows_digest=rows)
    yield SwapPart(header=header)
    for chunk in chunks(tensors.values()):
        yield SwapPart(chunk=chunk)


def read_bundle(
    header: SwapHeader, parts: Iterator[SwapPart], count: Callable[[SwapPart], None] = lambda _part: None
) -> dict[str, Tensor]:
    """Read the tensors that a header announces."""
    assembler = Assembler(header.bundle, OUTPUT_LIMIT_BYTES)
    for part in parts:
        if part.WhichOneof("part") != "chunk":
            raise CodecError("only chunks follow the header")
        count(part)
        assembler.add(part.chunk.offset, part.chunk.data)
    return assembler.finish()
