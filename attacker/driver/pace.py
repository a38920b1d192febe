"""Keeps the attack out of the workers' way while the rounds go on: the lowest priority, and rests between rounds.

Linux does not move waiting tasks to a core that runs a task of the lowest priority, so the attack also rests. It does
neither while so many rounds wait for it that the next ones would soon have to.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

LEAST_PRIORITY = 19
SESSION = Path("/proc/self/autogroup")
"""Linux divides its time among sessions first: "/autogroup-23 nice 0"."""
SHARE = 0.05
"""Of a core, that the attack takes although the workers use all of them."""
MARGIN = 0.5
"""Cores that it leaves free of those that no other process uses."""
WINDOW = 0.5
"""Seconds after which the cores are looked at again: the counters are too coarse for less."""
_NOT_WORK = {"idle", "iowait", "guest", "guest_nice"}
"""What is no work, or is counted as the user's too."""


def out_of_the_way(work: Callable[[], None], over: threading.Event, hurried: Callable[[], bool]) -> None:
    """Do `work` at the lowest priority, but where there is hurry, until `over` is set; the work's end sets it too."""
    # A thread of its own: without privileges a thread's priority can be lowered, and never raised again.
    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(threading.get_native_id).result()
        least, usual = (LEAST_PRIORITY, LEAST_PRIORITY), (os.getpriority(os.PRIO_PROCESS, 0), _session_nice())
        _set_priority(thread, *(priority := least))
        working = pool.submit(work)
        working.add_done_callback(lambda _: over.set())
        while not over.wait(WINDOW):
            if (wanted := usual if hurried() else least) != priority:
                _set_priority(thread, *(priority := wanted))
        _set_priority(thread, *usual)
        working.result()


def _session_nice() -> int:
    """Return how nice this process's session is to others, which `nice` of the process says nothing of."""
    with contextlib.suppress(OSError, ValueError):
        return int(SESSION.read_text(encoding="ascii").split()[-1])
    return 0


def _set_priority(thread: int, nice: int, session: int) -> None:
    """Change how much time a thread of this process is given beside others; Linux has this by thread and by session."""
    if sys.platform == "linux":
        with contextlib.suppress(PermissionError):  # to raise a thread's again may not be allowed
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        with contextlib.suppress(OSError):  # where sessions do not count there is no such file
            SESSION.write_text(str(session), encoding="ascii")


class Pace:
    """How long the attack rests between two rounds: where the workers need every core, they hardly notice it."""

    def __init__(self) -> None:
        self._last = Use.now()
        self._share = 1.0 if self._last is None else SHARE
        """Of its time, that the attack may work; all of it where there are no counters to read."""

    def rest(self, worked: float, *, over: threading.Event, hurried: Callable[[], bool]) -> None:
        """Leave the cores to the workers after so many seconds of work, until `over` is set or there is hurry."""
        began = time.monotonic()
        while (left := began + self.rest_after(worked) - time.monotonic()) > 0 and not hurried():
            if over.wait(min(left, WINDOW)):
                return

    def rest_after(self, worked: float) -> float:
        """Return for how many seconds to rest after so many of work."""
        if self._last is not None and time.monotonic() - self._last.passed >= WINDOW:
            now = Use.now()
            spare = float("inf") if now is None else now.spare(self._last, len(usable_cores()))
            self._last, self._share = now, min(1.0, max(SHARE, spare - MARGIN))
        return worked * (1 / self._share - 1)


@dataclass(frozen=True)
class Use:
    """How much time has passed, and how much was worked: on all cores that this process may use, and by itself."""

    passed: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> "Use | None":
        """Return what the counters say; None where there are none."""
        try:
            cores = psutil.cpu_times(percpu=True)
        except OSError:
            return None
        mine = [cores[core] for core in usable_cores() if core < len(cores)]
        busy = (value for core in mine for name, value in core._asdict().items() if name not in _NOT_WORK)
        return cls(time.monotonic(), sum(busy), time.process_time())

    def spare(self, since: "Use", cores: int) -> float:
        """Return how many cores no other process has used since then."""
        others = (self.busy - since.busy) - (self.own - since.own)
        return cores - others / max(self.passed - since.passed, 1e-9)


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))
