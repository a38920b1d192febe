"""What the attack shows on the way: estimates every so many rounds for the referee, its progress for the user."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from attacker.interface import Progress, Recovery, Setting, silent
from vfl.errors import UserError
from vfl.folder.recovered import write_partial, write_snapshot

STEP_EVERY_SECONDS = 0.1
ESTIMATE_EVERY_SECONDS = 2.0


class Snapshots:
    """Asks the attack for its estimate after every `every` rounds, if that is a number."""

    def __init__(self, out: Path, setting: Setting, every: int | None) -> None:
        self._out, self._setting, self._every = out, setting, every
        self._began = time.monotonic()

    def take(self, number: int, recover: Callable[[Progress], Recovery]) -> None:
        """Write an estimate if one is due after this round and the rounds so far allow one."""
        if self._every is None or number % self._every:
            return
        seconds = time.monotonic() - self._began
        try:
            recovery = recover(silent)
        except UserError:  # not enough rounds yet, as its sentence says at the end if that is still so
            return
        write_snapshot(self._out, self._setting, recovery, number=number, seconds=seconds)


class LiveProgress:
    """What the attack is given to show how far it is: the coordinator gets its steps, a file its estimate so far."""

    def __init__(
        self, send: Callable[[tuple[str, int, int]], None], out: Path, setting: Setting, *, estimates: bool
    ) -> None:
        self._send, self._out, self._setting, self._estimates = send, out, setting, estimates
        self._step, self._sent = "", 0.0
        self._written = time.monotonic()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Send a step, if it is a new one, the last of its kind, or some time has passed since the one before."""
        if step != self._step or done >= total or time.monotonic() - self._sent >= STEP_EVERY_SECONDS:
            self._step, self._sent = step, time.monotonic()
            self._send((step, done, total))

    def estimate(self, make: Callable[[], Recovery]) -> None:
        """Write what `make` returns, if the user wants to see estimates and it is time for one."""
        if self._estimates and time.monotonic() - self._written >= ESTIMATE_EVERY_SECONDS:
            with contextlib.suppress(OSError):  # a full disk is no reason to end an attack that need not write yet
                write_partial(self._out, self._setting, make())
            self._written = time.monotonic()
