"""Where the label holder's computing meets its peers' calls: they leave outputs there, and wait for the gradients."""

import asyncio
import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from protos.codec import announce, chunks
from protos.worker_pb2 import SwapHeader, SwapPart
from vfl import limits
from vfl.errors import RunFailedError

T = TypeVar("T")


@dataclass(frozen=True)
class _Brought:
    round: int
    output: Tensor
    rows: bytes


class ExchangeError(RunFailedError):
    """An exchange between workers that failed: the round may be done again."""


class SupersededError(Exception):
    """The round that a worker waits in is to be done again, or not at all."""


class Rendezvous:
    """Peers each bring an output for a round and wait for its gradient.

    The label holder computes in one thread; the event loop of another serves its peers' calls.
    """

    def __init__(self, samples: int = limits.SAMPLES) -> None:
        """Begin without peers; no output may be of more samples than given."""
        self.samples = samples
        self._changed = threading.Condition()
        self._bells: set[Callable[[], object]] = set()
        """Each wakes a call that waits on the event loop."""
        self._brought: dict[int, _Brought] = {}
        self._answers: dict[int, tuple[int, list[SwapPart]]] = {}
        self._failure: str | None = None
        self._coming = ""
        self.run_id = ""
        self.widths: dict[int, int] = {}
        self.bytes = 0
        """Sent and received in exchanges so far."""

    def open(self, run_id: str, widths: Mapping[int, int]) -> None:
        """Let the peers of a run in: their numbers and the length of their outputs."""
        with self._changed:
            self._brought.clear()
            self._answers.clear()
            self._coming, self.run_id, self.widths = run_id, run_id, dict(widths)
            self._failure = None
            self._wake_all()

    def supersede(self, run_id: str) -> None:
        """Wake all that wait: the rounds of the open run are over, and `run_id` is to come."""
        with self._changed:
            self._coming, self._failure = run_id, None
            self._wake_all()

    def recount(self) -> None:
        """Count the bytes exchanged from zero again: the coordinator has added up those before."""
        with self._changed:
            self.bytes = 0

    async def bring(self, header: SwapHeader, output: Tensor, timeout: float) -> list[SwapPart]:
        """Leave a peer's output and wait for the answer: the gradient of it, nothing when the round only evaluates."""
        worker, number, run_id = header.worker, header.round, header.run_id
        with self._changed:
            if self.run_id != run_id:
                raise SupersededError
            self._brought[worker] = _Brought(number, output, header.rows_digest)
            self._wake_all()

        def answer() -> list[SwapPart] | None:
            if self._over(run_id, self._answers.get(worker, (0, []))[0] == number):
                return self._answers.pop(worker)[1]
            return None

        parts = await self._called(answer, lambda: timeout)
        if parts is None:
            raise _late(f"the answer to round {number}", timeout)
        return parts

    def gather(self, number: int, rows: Tensor, timeout: float) -> dict[int, Tensor]:
        """Wait until all peers have brought their outputs for these rows."""
        with self._changed:
            run_id = self.run_id

            def missing() -> list[int]:
                return [m for m in self.widths if m not in self._brought or self._brought[m].round != number]

            if not self._changed.wait_for(lambda: self._over(run_id, not missing()), timeout):
                raise _late(f"the outputs of workers {missing()} for round {number}", timeout)
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
            self._wake_all()

    def count(self, part: SwapPart) -> None:
        """Add a message to the bytes exchanged."""
        with self._changed:
            self.bytes += part.ByteSize()

    def fail(self, reason: str) -> None:
        """Wake all that wait: the run is over."""
        with self._changed:
            self._failure = self._failure or reason
            self._wake_all()

    async def wait_open(self, run_id: str) -> bool:
        """Wait until the label holder itself has had its start; return whether it is that of the caller's run."""

        def opened() -> bool | None:
            return True if self.run_id == run_id else False if self._failure else None

        # A start may reach the caller first; a caller that asks for an old run waits in vain, but not long.
        return bool(
            await self._called(
                opened, lambda: limits.RECEIVE_SECONDS if self._coming == run_id else limits.OPEN_SECONDS
            )
        )

    def _over(self, run_id: str, ready: bool) -> bool:
        """Return `ready`; if it never will be, raise why."""
        if self._coming != run_id:
            raise SupersededError
        if not ready and self._failure:
            raise RunFailedError(self._failure)
        return ready

    async def _called(self, look: Callable[[], T | None], patience: Callable[[], float]) -> T | None:
        """Wait on the event loop until `look` finds something; None after `patience()` seconds."""
        loop, rung = asyncio.get_running_loop(), asyncio.Event()

        def bell() -> None:
            loop.call_soon_threadsafe(rung.set)

        began = time.monotonic()
        try:
            while True:
                rung.clear()
                with self._changed:
                    self._bells.add(bell)
                    found = look()
                    left = began + patience() - time.monotonic()
                if found is not None or left <= 0:
                    return found
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(rung.wait(), left)
        finally:
            with self._changed:
                self._bells.discard(bell)

    def _wake_all(self) -> None:
        self._changed.notify_all()
        for bell in self._bells:
            bell()


def rows_digest(rows: Tensor) -> bytes:
    """Return a digest by which two workers see whether they computed on the same rows in the same order."""
    return hashlib.sha256(rows.to(torch.int64).numpy().tobytes()).digest()[:8]


def swap_parts(
    run_id: str, worker: int, number: int, tensors: Mapping[str, Tensor], *, rows: bytes = b""
) -> Iterator[SwapPart]:
    """Put tensors into the messages of an exchange."""
    header = SwapHeader(run_id=run_id, worker=worker, round=number, bundle=announce(tensors), rows_digest=rows)
    yield SwapPart(header=header)
    for chunk in chunks(tensors.values()):
        yield SwapPart(chunk=chunk)


def _late(what: str, timeout: float) -> ExchangeError:
    return ExchangeError(f"no sign of {what} for {timeout:g} s")
