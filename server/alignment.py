"""Workers with tables of their own: which rows all of them have, by keyed hashes that the coordinator compares."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import numpy as np

from protos.alignment_pb2 import AlignHeader, AlignPart, PassHeader, PassPart, PlaceRequest
from protos.coordinator_pb2 import Slice
from server.refusal import RefusedError, check_certificate, check_number, check_version, invalid, unfit
from vfl import limits
from vfl.net.alignment import HASH_BYTES, common_hashes, from_bytes, pass_parts, pieces
from vfl.net.network import PROTOCOL_VERSION

T = TypeVar("T")
STEPS = 3
"""Of a private intersection."""


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
            check_version(header.worker, header.protocol_version)
            self._check_worker(context, header.worker)
            if not 0 < header.ids <= limits.IDS:
                raise invalid(f"worker {header.worker} brings {header.ids} ids, expected 1 to {limits.IDS}")
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
                data = await self._swaps.take(header, parts)
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
        if not least <= features <= limits.FEATURES:
            raise invalid(f"worker {worker} has {features} features, expected {least} to {limits.FEATURES}")
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
            late = f"after {self._patience:g} s not all workers have come to be aligned"
            raise RefusedError(grpc.StatusCode.DEADLINE_EXCEEDED, late) from None

    def _check_worker(self, context: Any, worker: int) -> None:
        check_number(worker, self._workers)
        if self._tls:
            check_certificate(context, worker)


class Hashes:
    """What workers brought, kept until all have and compared once; of one that comes back nothing is kept."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._brought: dict[int, np.ndarray] = {}
        self._digests: dict[int, bytes] = {}
        self._room: dict[int, int] = {}
        """Bytes of what each worker brought, or has announced and is sending."""
        self._complete = asyncio.Event()
        self._common: asyncio.Task[np.ndarray] | None = None

    @property
    def compared(self) -> bool:
        """Whether all workers have brought theirs."""
        return self._common is not None

    async def take(self, header: AlignHeader, parts: AsyncIterator[AlignPart]) -> None:
        """Take as many hashes as a header announces."""
        worker = header.worker
        if not self.compared:
            self._make_room(worker, header.ids * HASH_BYTES)
        try:
            data, digest = await self._received(header, parts)
            if not self.compared and await asyncio.to_thread(_repeats, data):
                raise _broken(worker)
            if not self.compared:
                self._keep(worker, data, digest)
            elif self._digests[worker] != digest:
                other = f"worker {worker} brings other ids than before"
                raise unfit(f"{other}, and the workers have been aligned: start all anew")
        finally:
            if worker not in self._brought:
                self._room.pop(worker, None)

    async def common(self) -> np.ndarray:
        """Return the hashes that all workers have, as soon as all have brought theirs."""
        await self._complete.wait()
        assert self._common is not None
        common = await asyncio.shield(self._common)
        if not len(common):
            raise unfit("no id is known to all workers: have they the same --align-key, and is data.id the same thing?")
        return common

    def _make_room(self, worker: int, wanted: int) -> None:
        """Let go of what a worker brought before, and see whether there is room for what it brings now."""
        self._brought.pop(worker, None)
        self._room.pop(worker, None)
        total = sum(self._room.values()) + wanted
        if total > limits.ALIGN_BYTES:
            raise RefusedError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"with the {wanted} bytes of worker {worker} all workers' hashes take {total}, the limit is "
                f"{limits.ALIGN_BYTES}: align smaller tables",
            )
        self._room[worker] = wanted

    async def _received(self, header: AlignHeader, parts: AsyncIterator[AlignPart]) -> tuple[bytearray, bytes]:
        """Return the bytes, none once all were compared, and their digest; the server ends calls that are too slow."""
        data, digest = bytearray(), hashlib.sha256()
        received, expected = 0, header.ids * HASH_BYTES
        while received < expected:
            part = await anext(parts, None)
            if part is None or not part.hashes or received + len(part.hashes) > expected:
                raise _broken(header.worker)
            received += len(part.hashes)
            digest.update(part.hashes)
            if not self.compared:
                data += part.hashes
        return data, digest.digest()

    def _keep(self, worker: int, data: bytearray, digest: bytes) -> None:
        self._brought[worker], self._digests[worker] = from_bytes(data), digest
        if len(self._brought) == self._workers:
            self._common = asyncio.create_task(asyncio.to_thread(common_hashes, list(self._brought.values())))
            self._brought.clear()
            self._complete.set()


def _repeats(data: bytearray) -> bool:
    return len(np.unique(from_bytes(data))) * HASH_BYTES != len(data)


def _broken(worker: int) -> RefusedError:
    return invalid(f"the hashes of worker {worker} are not as many as announced, or an id is there twice")


class Swaps:
    """What two workers that intersect their ids in private post, which the coordinator passes on and cannot read.

    It is kept until the other side has it; that a step was made is kept to the end.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._posted: dict[tuple[int, int], bytes] = {}
        self._changed = asyncio.Condition()

    async def take(self, header: PassHeader, parts: AsyncIterator[PassPart]) -> bytes:
        """Return as many bytes as a header announces, if it is that of a message of an intersection."""
        who = f"worker {header.worker}"
        check_version(header.worker, header.protocol_version)
        if self._workers != 2:
            here = f"which two workers make, and here are {self._workers}: use --align-key"
            raise unfit(f"{who} wants a private intersection, {here}")
        if header.step >= STEPS or not 0 < header.bytes <= limits.PRIVATE_BYTES:
            expected = f"expected 1 to {limits.PRIVATE_BYTES} in steps 0 to {STEPS - 1}"
            raise invalid(f"{who} posts {header.bytes} bytes in step {header.step}, {expected}")
        if (header.worker, header.step) in self._posted:
            raise unfit(f"{who} has made step {header.step} already, with other keys: start all anew")
        data = bytearray()
        while len(data) < header.bytes:
            part = await anext(parts, None)
            if part is None or not part.data or len(data) + len(part.data) > header.bytes:
                raise invalid(f"the message of {who} is not as long as announced")
            data += part.data
        return bytes(data)

    async def swap(self, worker: int, step: int, data: bytes) -> bytes:
        """Post one side's message; return the other's, as soon as it is there."""
        self._posted[worker, step] = data
        other = (1 - worker, step)
        async with self._changed:
            self._changed.notify_all()
            await self._changed.wait_for(lambda: other in self._posted)
        theirs, self._posted[other] = self._posted[other], b""  # it is fetched once
        return theirs
