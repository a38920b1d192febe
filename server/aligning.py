"""Workers with tables of their own: which rows all of them have, by keyed hashes that the coordinator compares."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np

from protos import alignment_pb2_grpc
from protos.alignment_pb2 import AlignHeader, AlignPart, PassPart, PlaceRequest
from protos.coordinator_pb2 import Slice
from server.membership import RefusedError
from server.swapping import Swaps, received
from vfl.alignment import HASH_BYTES, common_hashes, from_bytes, pass_parts, pieces
from vfl.limits import FEATURES, IDS
from vfl.network import PROTOCOL_VERSION
from vfl.tls import ImpostorError, check_caller


class AlignmentService(alignment_pb2_grpc.AlignmentServicer):
    """What workers call before they join. A worker that comes back brings what it brought before."""

    def __init__(self, workers: int, tls: bool) -> None:
        self._workers, self._tls = workers, tls
        self._hashes: dict[int, np.ndarray] = {}
        self._features: dict[int, int] = {}
        self._all_hashes, self._all_features = asyncio.Event(), asyncio.Event()
        self._common: asyncio.Task[np.ndarray] | None = None
        self._swaps = Swaps(workers)

    async def Align(self, request_iterator: AsyncIterator[AlignPart], context: Any) -> AsyncIterator[AlignPart]:
        """Take a worker's hashes; answer with those that all workers have."""
        try:
            worker, hashes = await self._receive(request_iterator, context)
            common = await self._compared(worker, hashes)
        except RefusedError as refused:
            await context.abort(refused.code, refused.reason)
        yield AlignPart(header=AlignHeader(protocol_version=PROTOCOL_VERSION, worker=worker, ids=len(common)))
        for piece in pieces(common):
            yield AlignPart(hashes=piece)

    async def Pass(self, request_iterator: AsyncIterator[PassPart], context: Any) -> AsyncIterator[PassPart]:
        """Take a step of a private intersection; answer with the other worker's."""
        try:
            header = (await anext(aiter(request_iterator), PassPart())).header
            self._check_worker(context, header.worker)
            data = await received(self._swaps, header, aiter(request_iterator))
        except RefusedError as refused:
            await context.abort(refused.code, refused.reason)
        other = await self._swaps.swap(header.worker, header.step, data)
        for part in pass_parts(1 - header.worker, header.step, other):
            yield part

    async def Place(self, request: PlaceRequest, context: Any) -> Slice:
        """Take the number of a worker's features; answer with their place in the whole sample."""
        worker, features = request.worker, request.features
        try:
            self._check_worker(context, worker)
            # The last worker may be a label holder without features; whether it is, its joining tells.
            least = 0 if worker == self._workers - 1 > 0 else 1
            if not least <= features <= FEATURES:
                raise RefusedError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"worker {worker} has {features} features, expected {least} to {FEATURES}",
                )
            if self._features.setdefault(worker, features) != features:
                raise RefusedError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"worker {worker} has other columns than before: start all anew",
                )
        except RefusedError as refused:
            await context.abort(refused.code, refused.reason)
        if len(self._features) == self._workers:
            self._all_features.set()
        await self._all_features.wait()
        widths = [self._features[number] for number in range(self._workers)]
        start = sum(widths[:worker]) if features else 0  # none at all have their place at the beginning
        return Slice(sample_shape=[sum(widths)], start=[start], stop=[start + features])

    async def _receive(self, parts: AsyncIterator[AlignPart], context: Any) -> tuple[int, np.ndarray]:
        """Take a header and as many hashes as it announces; whoever calls too slowly is cut off by the server."""
        header = AlignHeader()
        received, expected = bytearray(), 0
        async for part in parts:
            if part.WhichOneof("part") == "header" and not expected:
                header = part.header
                self._check(header, context)
                expected = header.ids * HASH_BYTES
            elif not part.hashes or len(received) + len(part.hashes) > expected:
                break
            received += part.hashes
            if len(received) == expected:
                hashes = from_bytes(bytes(received))
                if len(np.unique(hashes)) == len(hashes):
                    return header.worker, hashes
        raise RefusedError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"the hashes of worker {header.worker} are not as many as announced, or an id is there twice",
        )

    def _check(self, header: AlignHeader, context: Any) -> None:
        if header.protocol_version != PROTOCOL_VERSION:
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"worker {header.worker} speaks protocol version {header.protocol_version}, this coordinator "
                f"{PROTOCOL_VERSION}: install the same release on both",
            )
        self._check_worker(context, header.worker)
        if not 0 < header.ids <= IDS:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"worker {header.worker} brings {header.ids} ids, expected 1 to {IDS}",
            )

    def _check_worker(self, context: Any, worker: int) -> None:
        if worker >= self._workers:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"there is no worker {worker} in this federation: its workers are 0 to {self._workers - 1}",
            )
        if self._tls:
            try:
                check_caller(context, worker)
            except ImpostorError as error:
                raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, str(error)) from None

    async def _compared(self, worker: int, hashes: np.ndarray) -> np.ndarray:
        if self._common is not None and not np.array_equal(self._hashes[worker], hashes):
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"worker {worker} brings other ids than before, and the workers have been aligned: start all anew",
            )
        self._hashes[worker] = hashes
        if self._common is None and len(self._hashes) == self._workers:
            self._common = asyncio.create_task(asyncio.to_thread(common_hashes, list(self._hashes.values())))
            self._all_hashes.set()
        await self._all_hashes.wait()
        assert self._common is not None
        common = await asyncio.shield(self._common)
        if not len(common):
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "no id is known to all workers: have they the same --align-key, and is data.id the same thing?",
            )
        return common
