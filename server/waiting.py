"""Waits that end when the run fails, whatever they wait for."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from server.disturbances import DisturbedError
from server.watching import seen
from vfl.errors import CafeError, RunFailedError

T = TypeVar("T")


class Waiting:
    """Where a run's failure is told, and where everybody who waits hears of it."""

    def __init__(self) -> None:
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: CafeError) -> None:
        """End all waits with an error; the first one counts."""
        if not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # seen: asyncio need not warn when nobody is waiting any more

    @property
    def failed(self) -> bool:
        """Whether there is an error."""
        return self._failure.done()

    def check(self) -> None:
        """Raise the error, if there is one."""
        if self._failure.done():
            self._failure.result()

    async def for_thread(self, do: Callable[..., T], *arguments: Any) -> T:
        """Let a thread do something, and wait for it no longer than until the run fails."""
        doing = asyncio.ensure_future(asyncio.to_thread(do, *arguments))
        try:
            await self.until(doing, None, str)
        except BaseException:
            doing.add_done_callback(seen)
            raise
        return doing.result()

    async def until(
        self,
        ready: Awaitable[Any],
        timeout: float | None,
        late: Callable[[], str],
        disturbed: "asyncio.Future[None] | None" = None,
    ) -> None:
        """Wait for something, but no longer than until the run fails, is disturbed, or the time is up."""
        # What is a future already (an evaluation, the observer's thread) outlives this wait, a mere wait does not.
        task = asyncio.shield(ready) if isinstance(ready, asyncio.Future) else asyncio.ensure_future(ready)
        awaited = {task, self._failure} | ({disturbed} if disturbed else set())
        done, _ = await asyncio.wait(awaited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task not in done:
            task.cancel()
        self.check()
        if not done:
            raise RunFailedError(late())
        if task not in done:
            raise DisturbedError
        task.result()
