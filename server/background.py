"""What becomes of a round while the workers compute the next: the observer is shown it, a checkpoint is written."""

import asyncio
import time
from collections.abc import Mapping

from torch import Tensor

from server.checkpoint import Checkpoints, State
from server.disturbances import Failure, look_at
from vfl.observation import Observation, Observer

OVER_SECONDS = 20.0
"""How long a run that ends waits for its observer: an attack may be frozen, or wait for a disk that is full."""
HEAD_START = 0.3
"""The share of a round's time for which the observer waits, so that the workers have their parameters by then."""
LONGEST_HEAD_START = 0.05
"""The most seconds that it waits."""


class Background:
    """Does one thing after the other in another thread; before a round is shown, `task` must be done."""

    def __init__(self, observer: Observer, checkpoints: Checkpoints) -> None:
        self._observer, self._checkpoints = observer, checkpoints
        self.task: asyncio.Task[None] | None = None
        self._took = 0.0
        """Seconds that the observer needed for the last round."""

    def show(self, observation: Observation, round_seconds: float = 0.0) -> None:
        """Let the observer look at a round, after a head start for the next one, where rounds take that long."""
        self.task = asyncio.create_task(self._show(observation, self.head_start(round_seconds)))

    def head_start(self, round_seconds: float) -> float:
        """Return how many seconds the observer waits after a round has begun.

        A share of the round's time, but so little that the round has twice the time left which the observer last took.
        """
        return max(0.0, min(HEAD_START * round_seconds, LONGEST_HEAD_START, round_seconds - 2 * self._took))

    async def _show(self, observation: Observation, head_start: float) -> None:
        if head_start:
            await asyncio.sleep(head_start)
        began = time.monotonic()
        await asyncio.to_thread(self._observer, observation)
        self._took = time.monotonic() - began

    def keep(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint as soon as the observer has seen its last round."""
        self.task = asyncio.create_task(self._keep(self.task, state, tensors))

    async def _keep(self, before: "asyncio.Task[None] | None", state: State, tensors: Mapping[str, Tensor]) -> None:
        if before is not None:
            await before
        await asyncio.to_thread(self._checkpoints.write, state, tensors)

    async def caught_up(self, failure: Failure) -> None:
        """Wait until all that was shown and kept so far is done, or the run fails."""
        if self.task is not None:
            await failure.until(self.task, None, str)

    async def over(self) -> bool:
        """Wait until all is done, but not for ever; tell whether it went well."""
        if self.task is None:
            return True
        done, _ = await asyncio.wait([self.task], timeout=OVER_SECONDS)
        self.task.add_done_callback(look_at)
        return bool(done) and self.task.exception() is None
