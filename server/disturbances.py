"""What may go wrong in a run: failures end it; disturbances (lost workers, failed exchanges) are mended."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from server.membership import Member
from vfl.errors import CafeError, InterruptedRunError, RunFailedError
from vfl.folder.record import Record
from vfl.folder.summary import Disturbance
from vfl.limits import LONGEST_REASON, MOST_REASONS, MOST_TRIES

T = TypeVar("T")
SETTLE_SECONDS = 0.3
"""How long mending waits before it counts the workers: a lost one often shows as another's failed exchange first."""


def in_trouble(member: Member, reason: str) -> str:
    """Return a worker's words as a sentence of the coordinator's."""
    return f"worker {member.worker}: {''.join(c if c.isprintable() else ' ' for c in reason[:LONGEST_REASON])}"


class DisturbedError(Exception):
    """The rounds that are under way must be done again."""


class WorkerLeftError(RunFailedError):
    """A run that failed because a worker left; `worker` says which."""

    def __init__(self, worker: int, reason: str) -> None:
        super().__init__(reason)
        self.worker = worker


class Failure:
    """What ends a run before its time: the first one counts, and ends whatever is waited for."""

    def __init__(self) -> None:
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: CafeError) -> None:
        """End all waits with an error; the first one counts."""
        if not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # looked at: asyncio need not warn if nothing waits any more

    def interrupt(self) -> None:
        """End the run because a person asks for it."""
        self.fail(InterruptedRunError("stopped before the end"))

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
            doing.add_done_callback(look_at)
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


class Disturbances:
    """Notes what goes wrong, and says so; `patience` is how many seconds a lost worker is waited for, 0 for none."""

    def __init__(self, patience: float, record: Record, say: Callable[[str], None]) -> None:
        self.patience, self._record, self._say = patience, record, say
        self.happened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once something has gone wrong."""
        self._reasons: list[str] = []
        self._began = 0.0
        self._tries = 0

    def left(self, member: Member) -> None:
        """Note that a worker was lost."""
        self._note(f"worker {member.worker} left in round {self._record.rounds + 1}")

    def trouble(self, member: Member, reason: str) -> None:
        """Note that a worker cannot go on with a round."""
        self._note(in_trouble(member, reason))

    def _note(self, what: str) -> None:
        if not self._reasons:
            self._began = time.monotonic()
        if what not in self._reasons and len(self._reasons) < MOST_REASONS:
            self._reasons.append(what)
            self._say(what)
        if not self.happened.done():
            self.happened.set_result(None)

    async def settle(self, missing: Callable[[], list[int]]) -> None:
        """Begin to mend: what has happened by now is dealt with, unless it has happened too often."""
        self._tries += 1
        if self._tries > MOST_TRIES:
            anew = f"round {self._record.rounds + 1} was begun anew {MOST_TRIES} times"
            raise RunFailedError(f"{anew}; {'; '.join(self._reasons)}")
        await asyncio.sleep(SETTLE_SECONDS)
        self.happened = asyncio.get_running_loop().create_future()
        if missing():
            self._say(f"waiting {self.patience:g} s for workers {missing()} to come back")

    def mended(self, redone: int) -> None:
        """Note that all are there again, and that so many rounds are done again."""
        seconds = time.monotonic() - self._began
        reasons, self._reasons = tuple(self._reasons), []
        mended = Disturbance(round=self._record.rounds + 1, reasons=[*reasons], seconds=seconds, redone=redone)
        self._record.disturbances.append(mended)
        self._say(f"all workers are there; on with round {self._record.rounds + 1} after {seconds:.1f} s")

    def round_done(self) -> None:
        """Note that a round has been finished."""
        self._tries = 0


def look_at(task: "asyncio.Future[Any]") -> None:
    """Look at the end of what is not waited for any more: asyncio warns of an error that is never looked at."""
    if not task.cancelled():
        task.exception()
