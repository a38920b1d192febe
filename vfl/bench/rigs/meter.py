"""Meters the processes of a run in this process's charge: the time each has computed, and the most memory it had."""

import multiprocessing
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

LOOK_SECONDS = 0.1


class Meter:
    """Looks at every process that `run_federation` starts, until the run is over."""

    def __init__(self, processes: int) -> None:
        """Wait for so many."""
        self._processes = processes
        self._computed: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self.peak: defaultdict[str, int] = defaultdict(int)
        self.shared = 0
        """Bytes of one worker that other processes have in memory too."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Meter":
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak of an earlier run
        self._thread.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def computed(self, name: str, until: float = float("inf")) -> float:
        """Return the seconds of a core that a process had used at a time (Unix seconds), or at its end."""
        samples = self._computed[name]
        before = [spent for moment, spent in samples if moment <= until]
        return before[-1] if before else 0.0

    def names(self) -> list[str]:
        """Return the processes that were seen."""
        return list(self._computed)

    def _look(self) -> None:
        # Only until all are there: asking for children also collects those that have ended, which is the launcher's.
        pids: dict[str, int] = {}
        watched: dict[str, psutil.Process] = {}
        while not self._over.wait(LOOK_SECONDS):
            if len(pids) < self._processes:
                pids = {child.name: child.pid for child in multiprocessing.active_children() if child.pid is not None}
                with suppress(psutil.NoSuchProcess):
                    watched |= {name: psutil.Process(pid) for name, pid in pids.items() if name not in watched}
            for name, process in list(watched.items()):
                try:
                    self._note(name, process)
                except psutil.NoSuchProcess:
                    del watched[name]

    def _note(self, name: str, process: psutil.Process) -> None:
        spent = process.cpu_times()
        self._computed[name].append((time.time(), spent.user + spent.system))
        self.peak[name] = max(self.peak[name], peak_memory(process))
        if name == "worker 0" and len(self._computed[name]) % 20 == 10:
            full = process.memory_full_info()
            self.shared = full.rss - full.uss


def peak_memory(process: psutil.Process) -> int:
    """Return the most memory that a process ever had, where the system tells; else what it has now."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    return int(process.memory_info().rss)
