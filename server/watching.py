"""What becomes of a round while the workers compute the next: the observer is shown it, a checkpoint is written."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from server.checkpoint import Checkpoints, State
from vfl.observation import Observation

Observer = Callable[[Observation], None]

OVER_SECONDS = 20.0
"""How long a run that ends waits for its observer: an attack may be frozen, or wait for a disk that is full."""


class Watching:
    """Does one thing after the other, in another thread; whoever adds a round waits for `task` first."""

    def __init__(self, observer: Observer, checkpoints: Checkpoints) -> None:
        self._observer, self._checkpoints = observer, checkpoints
        self.task: asyncio.Task[None] | None = None

    def show(self, observation: Observation) -> None:
        """Let the observer look at a round."""
        self.task = asyncio.create_task(asyncio.to_thread(self._observer, observation))

    def keep(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint as soon as the observer has seen its last round."""
        self.task = asyncio.create_task(self._keep(self.task, state, tensors))

    async def _keep(self, before: "asyncio.Task[None] | None", state: State, tensors: Mapping[str, Tensor]) -> None:
        if before is not None:
            await before
        await asyncio.to_thread(self._checkpoints.write, state, tensors)

    async def over(self) -> bool:
        """Wait until all is done, but not for ever; tell whether it went well."""
        if self.task is None:
            return True
        done, _ = await asyncio.wait([self.task], timeout=OVER_SECONDS)
        self.task.add_done_callback(seen)
        return bool(done) and self.task.exception() is None


def seen(task: "asyncio.Future[Any]") -> None:
    """Take note of how something ended that nobody waits for any more: asyncio complains of it otherwise."""
    if not task.cancelled():
        task.exception()
