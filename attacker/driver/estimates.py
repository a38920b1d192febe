"""The attack's estimates on the way: every so many rounds, kept for the referee, and while it recovers, to look at."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from attacker.interface import Progress, Recovery, Setting, silent
from vfl.errors import UserError
from vfl.folder.results import write_partial, write_snapshot

PARTIAL_EVERY_SECONDS = 2.0


class Snapshots:
    """Asks the attack for its estimate after every `every` rounds."""

    def __init__(self, out: Path, setting: Setting, every: int) -> None:
        self._out, self._setting, self._every = out, setting, every
        self._began = time.monotonic()

    def take(self, number: int, recover: Callable[[Progress], Recovery]) -> None:
        """Write an estimate if one is due after this round and the rounds so far allow one."""
        if number % self._every:
            return
        seconds = time.monotonic() - self._began
        try:
            recovery = recover(silent)
        except UserError:  # not enough rounds yet, as its sentence says at the end if that is still so
            return
        write_snapshot(self._out, self._setting, recovery, number, seconds)


class Partial:
    """Keeps the newest unfinished estimate on disk, written every couple of seconds at most."""

    def __init__(self, out: Path, setting: Setting) -> None:
        self._out, self._setting = out, setting
        self._written = time.monotonic()

    def offer(self, make: Callable[[], Recovery]) -> None:
        """Write what `make` returns, if it is time for that."""
        if time.monotonic() - self._written >= PARTIAL_EVERY_SECONDS:
            with contextlib.suppress(OSError):  # a full disk is no reason to end an attack that need not write yet
                write_partial(self._out, self._setting, make())
            self._written = time.monotonic()
