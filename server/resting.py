"""How long the attack rests between two rounds: where the workers need every core, they hardly notice it.

The lowest priority alone does not do: a core that has the attack to work on does not look for workers that wait at
another.
"""

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

SHARE = 0.05
"""Of a core, that the attack takes though none is to spare."""
MARGIN = 0.5
"""Cores that it leaves of those that nobody uses."""
WINDOW = 0.5
"""Seconds after which the cores are looked at again: the counters are too coarse for less."""

_NOT_WORK = {"idle", "iowait", "guest", "guest_nice"}
"""What is no work, or is counted as the user's too."""


@dataclass(frozen=True)
class Use:
    """How much time has passed, and how much was worked: on all cores that this process may use, and by itself."""

    passed: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> "Use":
        """Return what the counters say."""
        cores = psutil.cpu_times(percpu=True)
        mine = [cores[core] for core in usable_cores() if core < len(cores)]
        busy = (value for core in mine for name, value in core._asdict().items() if name not in _NOT_WORK)
        return cls(time.monotonic(), sum(busy), time.process_time())

    def spare(self, since: "Use", cores: int) -> float:
        """Return how many cores nobody else has used since then."""
        others = (self.busy - since.busy) - (self.own - since.own)
        return cores - others / max(self.passed - since.passed, 1e-9)


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))


class Resting:
    """Keeps an eye on the cores of this machine."""

    def __init__(self) -> None:
        self._share = 1.0
        """Of its time, that the attack may work; all of it where there are no counters to read."""
        self._last = _use()
        if self._last is not None:
            self._share = SHARE

    def after(self, worked: float) -> float:
        """Return for how many seconds to rest after so many of work."""
        if self._last is not None and time.monotonic() - self._last.passed >= WINDOW:
            now = _use()
            spare = float("inf") if now is None else now.spare(self._last, len(usable_cores()))
            self._last, self._share = now, min(1.0, max(SHARE, spare - MARGIN))
        return worked * (1 / self._share - 1)


def _use() -> Use | None:
    with suppress(OSError):
        return Use.now()
    return None
