"""How long the attack rests between two rounds: where the workers need every core, they hardly notice it.

The lowest priority alone does not do: a core that has the attack to work on does not look for workers that wait at
another.
"""

import time
from dataclasses import dataclass

import psutil

SHARE = 0.1
"""Of the time, that the attack works while no core is to spare."""
WINDOW = 0.5
"""Seconds after which the cores are looked at again: the counters are too coarse for less."""


@dataclass(frozen=True)
class Use:
    """How much time has passed, and how much of it has been worked: by all cores together, and by this process."""

    passed: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> "Use":
        """Return what the counters say."""
        times = psutil.cpu_times()
        waiting = times.idle + getattr(times, "iowait", 0.0)
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted as the user's too
        return cls(time.monotonic(), sum(times) - waiting - guests, time.process_time())

    def spare(self, since: "Use", cores: int) -> float:
        """Return how many cores nobody else has used since then."""
        others = (self.busy - since.busy) - (self.own - since.own)
        return cores - others / max(self.passed - since.passed, 1e-9)


class Resting:
    """Keeps an eye on the cores of this machine."""

    def __init__(self) -> None:
        self._cores = psutil.cpu_count() or 1
        self._last, self._spare = Use.now(), 0.0

    def after(self, worked: float) -> float:
        """Return for how many seconds to rest after so many of work."""
        if time.monotonic() - self._last.passed >= WINDOW:
            now = Use.now()
            self._last, self._spare = now, now.spare(self._last, self._cores)
        return 0.0 if self._spare >= 1 else worked * (1 / SHARE - 1)
