"""Two workers that intersect their ids in private: the coordinator passes on what each posts, and cannot read it."""

import asyncio
from collections.abc import AsyncIterator

from protos.alignment_pb2 import PassHeader, PassPart
from server.refusal import check_version, invalid, unfit
from vfl.limits import PRIVATE_BYTES

STEPS = 3


class Swaps:
    """What has been posted; kept until the other side has it. That a step was made is kept to the end."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._posted: dict[tuple[int, int], bytes] = {}
        self._changed = asyncio.Condition()

    def check(self, header: PassHeader) -> None:
        """Refuse what is no message of an intersection."""
        who = f"worker {header.worker}"
        check_version(header.worker, header.protocol_version)
        if self._workers != 2:
            raise unfit(
                f"{who} wants a private intersection, which two workers make, and here are {self._workers}: use "
                f"--align-key"
            )
        if header.step >= STEPS or not 0 < header.bytes <= PRIVATE_BYTES:
            raise invalid(
                f"{who} posts {header.bytes} bytes in step {header.step}, expected 1 to {PRIVATE_BYTES} in steps 0 to "
                f"{STEPS - 1}"
            )
        if (header.worker, header.step) in self._posted:
            raise unfit(f"{who} has made step {header.step} already, with other keys: start all anew")

    async def swap(self, worker: int, step: int, data: bytes) -> bytes:
        """Post one side's message; return the other's, as soon as it is there."""
        self._posted[worker, step] = data
        other = (1 - worker, step)
        async with self._changed:
            self._changed.notify_all()
            await self._changed.wait_for(lambda: other in self._posted)
        theirs, self._posted[other] = self._posted[other], b""  # it is fetched once
        return theirs


async def received(swaps: Swaps, header: PassHeader, parts: AsyncIterator[PassPart]) -> bytes:
    """Take as many bytes as a header announces."""
    swaps.check(header)
    data = bytearray()
    while len(data) < header.bytes:
        part = await anext(parts, None)
        if part is None or not part.data or len(data) + len(part.data) > header.bytes:
            raise invalid(f"the message of worker {header.worker} is not as long as announced")
        data += part.data
    return bytes(data)
