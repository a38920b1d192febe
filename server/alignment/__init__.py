"""Workers with tables of their own: which rows all of them have, by keyed hashes that the coordinator compares."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc

from protos.alignment_pb2 import AlignHeader, AlignPart, PassPart, PlaceRequest
from protos.coordinator_pb2 import Slice
from server.alignment.hashes import Hashes
from server.alignment.swaps import Swaps, received
from server.refusal import RefusedError, check_certificate, check_number, check_version, invalid, unfit
from vfl.limits import FEATURES, IDS
from vfl.net.alignment import pass_parts, pieces
from vfl.net.network import PROTOCOL_VERSION

T = TypeVar("T")


class AlignmentService:
    """What workers call before they join, one call of each kind at a time.

    A worker that comes back brings what it brought before; after the start nothing else is taken.
    """

    def __init__(self, workers: int, tls: bool, patience: float, started: Callable[[], bool]) -> None:
        """Begin with nothing; no worker is kept waiting for the others longer than `patience` seconds."""
        self._workers, self._tls = workers, tls
        self._patience, self._started = patience, started
        self._hashes, self._swaps = Hashes(workers), Swaps(workers)
        self._features: dict[int, int] = {}
        self._all_features = asyncio.Event()
        self._calling: set[tuple[str, int]] = set()

    async def Align(self, request_iterator: AsyncIterator[AlignPart], context: Any) -> AsyncIterator[AlignPart]:
        """Take a worker's hashes; answer with those that all workers have."""
        parts = aiter(request_iterator)
        try:
            header = (await anext(parts, AlignPart())).header
            self._check(header, context)
            with self._alone("Align", header.worker, again=self._hashes.compared):
                await self._hashes.take(header, parts)
                common = await self._in_time(self._hashes.common())
        except RefusedError as refused:
            await context.abort(refused.code, refused.reason)
        yield AlignPart(header=AlignHeader(protocol_version=PROTOCOL_VERSION, worker=header.worker, ids=len(common)))
        for piece in pieces(common):
            yield AlignPart(hashes=piece)

    async def Pass(self, request_iterator: AsyncIterator[PassPart], context: Any) -> AsyncIterator[PassPart]:
        """Take a step of a private intersection; answer with the other worker's."""
        parts = aiter(request_iterator)
        try:
            header = (await anext(parts, PassPart())).header
            self._check_worker(context, header.worker)
            with self._alone("Pass", header.worker, again=False):
                data = await received(self._swaps, header, parts)
                other = await self._in_time(self._swaps.swap(header.worker, header.step, data))
        except RefusedError as refused:
            await context.abort(refused.code, refused.reason)
        for part in pass_parts(1 - header.worker, header.step, other):
            yield part

    async def Place(self, request: PlaceRequest, context: Any) -> Slice:
        """Take the number of a worker's features; answer with their place in the whole sample."""
        worker = request.worker
        try:
            self._check_worker(context, worker)
            with self._alone("Place", worker, again=self._all_features.is_set()):
                self._put(worker, request.features)
                await self._in_time(self._all_features.wait())
        except RefusedError as refused:
            await context.abort(refused.code, refused.reason)
        widths = [self._features[number] for number in range(self._workers)]
        # none at all have their place at the beginning
        start = sum(widths[:worker]) if request.features else 0
        return Slice(sample_shape=[sum(widths)], start=[start], stop=[start + request.features])

    def _put(self, worker: int, features: int) -> None:
        # The last worker may be a label holder without features; whether it is, its joining tells.
        least = 0 if worker == self._workers - 1 > 0 else 1
        if not least <= features <= FEATURES:
            raise invalid(f"worker {worker} has {features} features, expected {least} to {FEATURES}")
        if self._features.setdefault(worker, features) != features:
            raise unfit(f"worker {worker} has other columns than before: start all anew")
        if len(self._features) == self._workers:
            self._all_features.set()

    @contextmanager
    def _alone(self, call: str, worker: int, again: bool) -> Iterator[None]:
        """Refuse a call beside another of the same kind and worker and, unless it was answered before, in a run."""
        if self._started() and not again:
            raise unfit(f"the run has begun, and tables are aligned before that: worker {worker} comes too late")
        if (call, worker) in self._calling:
            raise RefusedError(
                grpc.StatusCode.ALREADY_EXISTS,
                f"worker {worker} is being aligned already; give each its own --id (a worker that was cut off can come "
                f"back once its lost connection has been noticed, within federation.silence_timeout)",
            )
        self._calling.add((call, worker))
        try:
            yield
        finally:
            self._calling.remove((call, worker))

    async def _in_time(self, others: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._patience):
                return await others
        except TimeoutError:
            raise RefusedError(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"after {self._patience:g} s not all workers have come to be aligned"
            ) from None

    def _check(self, header: AlignHeader, context: Any) -> None:
        check_version(header.worker, header.protocol_version)
        self._check_worker(context, header.worker)
        if not 0 < header.ids <= IDS:
            raise invalid(f"worker {header.worker} brings {header.ids} ids, expected 1 to {IDS}")

    def _check_worker(self, context: Any, worker: int) -> None:
        check_number(worker, self._workers)
        if self._tls:
            check_certificate(context, worker)
