"""The hashes that workers bring to be aligned: room for them, which worker brought which, and those that all have."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import grpc
import numpy as np

from protos.alignment_pb2 import AlignHeader, AlignPart
from server.refusal import RefusedError, invalid, unfit
from vfl import limits
from vfl.net.alignment import HASH_BYTES, common_hashes, from_bytes


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
                raise unfit(
                    f"worker {worker} brings other ids than before, and the workers have been aligned: start all anew"
                )
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
