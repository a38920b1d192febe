"""A worker's line to the coordinator: joining (again and again, where that helps), the stream of orders, uploads."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from itertools import chain

import grpc

from protos.codec import announce
from protos.coordinator_pb2 import Evaluation, JoinRequest, Order, Trouble, UploadHeader, UploadPart, Welcome
from protos.wire import COORDINATOR_SERVICE, UPLOAD, ChunkView, Stub
from vfl.config import SILENCE_SECONDS
from vfl.errors import RunFailedError
from vfl.limits import TROUBLE_SECONDS, WELCOME_SECONDS, plain
from vfl.net.handshake import HungUpError
from vfl.net.network import hang_up, reach, sentence
from vfl.net.tls import COORDINATOR, Identity
from vfl.observation import Tensors
from worker.party import Counted, Upload

NOTICED_SECONDS = 5.0
"""A coordinator frees a lost worker's place at most so much later than `silence_timeout`."""
LONGEST_PAUSE = 5.0

_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,  # by a coordinator that was stopped and is to be resumed
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAUTHENTICATED,
)


class LinkLostError(RunFailedError):
    """The connection to the coordinator broke; it gave no reason."""


class TakenError(LinkLostError):
    """The coordinator has a worker of this number: another, or this one over a connection not yet noticed as lost."""


class Link:
    """The connection to the coordinator. Orders are read in the background, so that an abort is heard at any time."""

    def __init__(
        self, address: str, worker: int, *, join_timeout: float, timeout: float, tls: Identity | None, silence: float
    ) -> None:
        """Wait until the coordinator answers at its address."""
        self._address, self._worker, self._timeout = address, worker, timeout
        self._channel = reach_coordinator(address, tls, join_timeout, silence)
        self._stub = Stub(self._channel, COORDINATOR_SERVICE)
        # Bounded: a worker that lags behind holds the coordinator's stream back instead of piling up orders.
        self._orders: queue.Queue[Order | ChunkView | RunFailedError] = queue.Queue(maxsize=16)
        self._over: RunFailedError | None = None
        self._lost: LinkLostError | None = None
        """Why an upload failed; orders may still come."""
        self._ended = threading.Event()
        self._closed = False
        self.session = ""
        self.generation = 0
        """How often this worker has come back since the start, this time included."""
        self.run_id = ""
        """Of the latest start that has arrived; orders before it are out of date."""
        self._uploader = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="upload")
        self._uploading: futures.Future[None] | None = None
        self.on_failure: Callable[[str], None] = lambda _reason: None
        self.on_start: Callable[[str], None] = lambda _run_id: None

    def join(self, request: JoinRequest) -> Welcome:
        """Join the run, and return the welcome, or fail with the coordinator's words."""
        stream = self._stub.Join(request)
        patience = threading.Timer(WELCOME_SECONDS, stream.cancel)  # the stream itself stays open for the whole run
        patience.start()
        try:
            first = next(stream, None)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.CANCELLED:
                raise LinkLostError(f"{self._address} let worker {self._worker} in and then said nothing") from None
            passing = {grpc.StatusCode.UNAVAILABLE: LinkLostError, grpc.StatusCode.ALREADY_EXISTS: TakenError}
            refused = f"the coordinator at {self._address} refused worker {self._worker}: {sentence(error)}"
            raise passing.get(error.code(), RunFailedError)(refused) from None
        finally:
            patience.cancel()
        if first is None:
            raise LinkLostError(f"the coordinator at {self._address} closed the connection before its welcome")
        if not isinstance(first, Order) or first.WhichOneof("order") != "welcome":
            stream.cancel()
            raise RunFailedError(f"{self._address} answered a join without a welcome: is it a coordinator?")
        self.session, self.generation = first.welcome.session, first.welcome.generation
        threading.Thread(target=self._listen, args=(stream,), daemon=True, name="orders").start()
        return first.welcome

    def next_order(self, patience: float) -> Order | ChunkView:
        """Return the next order; fail when the coordinator aborted, went away, or says nothing for so many seconds."""
        try:
            order = self._orders.get(timeout=patience)
        except queue.Empty:
            raise RunFailedError(f"the coordinator at {self._address} ordered nothing for {patience:g} s") from None
        if isinstance(order, RunFailedError):
            raise order
        return order

    def out_of_date(self, run_id: str) -> bool:
        """Return True once a newer start has replaced this one, or the connection is lost."""
        return run_id != self.run_id or self._ended.is_set()

    def failure_within(self, seconds: float) -> RunFailedError | None:
        """Wait a moment for the reason why the run ended; None when none arrives."""
        self._ended.wait(seconds)
        return self._over or self._lost

    def upload(self, run_id: str, number: int, upload: Upload, peer_bytes: int) -> None:
        """Upload one round's gradients in the background: with frozen parameters the next round is already here."""
        header = UploadHeader(
            session=self.session,
            run_id=run_id,
            worker=self._worker,
            round=number,
            gradients=announce(upload.gradients),
            loss=upload.loss,
            peer_bytes=peer_bytes,
            withheld=upload.withheld,
        )
        self.flush()
        self._uploading = self._uploader.submit(self._upload, header, upload.gradients)
        self._uploading.add_done_callback(self._uploaded)

    def flush(self) -> None:
        """Wait until the last upload has arrived; fail as it failed."""
        if self._uploading is not None:
            self._uploading.result()

    def _upload(self, header: UploadHeader, gradients: Tensors) -> None:
        try:
            parts = chain([UploadPart(header=header)], UPLOAD.chunks(gradients.values()))
            self._stub.Upload(parts, timeout=self._timeout)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.ABORTED:
                return  # the round is begun anew
            raise _failed(error, f"the coordinator refused the upload for round {header.round}") from None

    def _uploaded(self, upload: "futures.Future[None]") -> None:
        error = upload.exception()
        if isinstance(error, LinkLostError):
            self._lost = error
        if isinstance(error, RunFailedError):  # wake the session if it waits for an order: none may come any more
            self.on_failure(str(error))
            with contextlib.suppress(queue.Full):  # then the session is busy, and meets the error at its next upload
                self._orders.put_nowait(error)

    def report(self, run_id: str, number: int, counted: Counted, peer_bytes: int) -> None:
        """Report what was counted on test samples."""
        evaluation = Evaluation(
            session=self.session,
            run_id=run_id,
            round=number,
            correct=counted.correct,
            total=counted.total,
            loss_sum=counted.loss_sum,
            peer_bytes=peer_bytes,
        )
        try:
            self._stub.ReportEvaluation(evaluation, timeout=self._timeout)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.ABORTED:  # else the round is begun anew
                raise _failed(error, "the coordinator refused the evaluation") from None

    def trouble(self, run_id: str, reason: str, *, leaving: bool) -> None:
        """Report that this worker cannot go on, with the round or with the run."""
        if self._closed:
            return
        trouble = Trouble(session=self.session, run_id=run_id, reason=reason, leaving=leaving)
        with contextlib.suppress(grpc.RpcError):  # a coordinator that cannot be reached notices by itself
            self._stub.ReportTrouble(trouble, timeout=TROUBLE_SECONDS, wait_for_ready=True)

    def close(self) -> None:
        """Leave the run."""
        self._closed = True
        hang_up(self._channel)
        self._uploader.shutdown()

    def _listen(self, stream: Iterator[Order | ChunkView]) -> None:
        try:
            for order in stream:
                kind = order.WhichOneof("order") if isinstance(order, Order) else "chunk"
                if isinstance(order, Order) and kind == "abort":
                    self._fail(RunFailedError(f"the coordinator ended the run: {plain(order.abort.reason)}"))
                    return
                if isinstance(order, Order) and kind == "start":
                    self.run_id = order.start.run_id
                    self.on_start(self.run_id)
                self._orders.put(order)
                if kind == "end":
                    return
            closed = "closed the connection before the end of the run"
            self._fail(LinkLostError(f"the coordinator at {self._address} {closed}"))
        except grpc.RpcError as error:
            self._fail(LinkLostError(f"the coordinator at {self._address} went away: {sentence(error)}"))

    def _fail(self, over: RunFailedError) -> None:
        if self._closed:
            return
        self._over = over
        self._ended.set()
        self.on_failure(str(over))  # first: the queue may be full of orders that the session will not take any more
        self._orders.put(over)


def reach_coordinator(
    address: str, tls: Identity | None, patience: float, silence: float = SILENCE_SECONDS
) -> grpc.Channel:
    """Connect to the coordinator once it answers, or say that it does not."""
    try:
        return reach(address, COORDINATOR, tls, patience, silence=silence)
    except TimeoutError:
        running = "is `cafe serve` running there, and the port open?"
        raise RunFailedError(f"no coordinator answers at {address} after {patience:g} s: {running}") from None


def keep_joining(
    join: Callable[[float], Link], patience: float, *, doubted: float, say: Callable[[str], None] = lambda _: None
) -> Link:
    """Return what `join`, given the seconds that are left, returns; after `patience` seconds fail as it failed last.

    That the number is taken, or that the coordinator hangs up, may be a mistake of the user's: the worker says so at
    once, and tries for `doubted` seconds only.
    """
    deadline, pause, doubts_end = time.monotonic() + patience, 0.1, None
    while True:
        try:
            return join(max(1.0, deadline - time.monotonic()))
        except (LinkLostError, HungUpError) as error:
            now, until = time.monotonic(), deadline
            if isinstance(error, TakenError | HungUpError):
                if doubts_end is None:
                    doubts_end = now + doubted
                    say(f"{error}; trying again for {min(doubted, deadline - now):.0f} s")
                until = min(deadline, doubts_end)
            if now >= until:
                raise
            time.sleep(min(pause, until - now))
            pause = min(2 * pause, LONGEST_PAUSE)


def _failed(error: grpc.RpcError, what: str) -> RunFailedError:
    return (LinkLostError if error.code() in _LOST else RunFailedError)(f"{what}: {sentence(error)}")
