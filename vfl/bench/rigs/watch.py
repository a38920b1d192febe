"""Watches the processes of a run in this process's charge: their memory and open descriptors, as the rounds go on."""

import multiprocessing
import statistics
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from vfl.folder.transcript import round_name

LOOK_SECONDS = 0.05
NEAR = 9
"""How many samples about the middle of a tenth of the rounds stand for it."""


@dataclass(frozen=True)
class Sample:
    """A process after some rounds: its memory in bytes, its open descriptors."""

    round: int
    memory: int
    descriptors: int


class Watch:
    """Looks at every process that `run_federation` starts, until the run is over."""

    def __init__(self, processes: int, out: Path) -> None:
        """Wait for so many; rounds are counted in the run's transcript, if it has one."""
        self._processes, self._out = processes, out
        self.samples: defaultdict[str, list[Sample]] = defaultdict(list)
        self.pids: dict[str, int] = {}
        self._round = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def tenth(self, name: str, which: int, rounds: int) -> Sample:
        """Return what a process needed in a tenth of the rounds: the medians of a few samples in its middle."""
        middle = (which - 0.5) * rounds / 10
        near = sorted(self.samples[name], key=lambda sample: abs(sample.round - middle))[:NEAR]
        memory, descriptors = ([getattr(one, what) for one in near] for what in ("memory", "descriptors"))
        return Sample(round(middle), int(statistics.median(memory)), int(statistics.median(descriptors)))

    def most(self, name: str) -> int:
        """Return the most memory that a process had."""
        return max(sample.memory for sample in self.samples[name])

    def _look(self) -> None:
        # Only until all are there: asking for children also collects those that have ended, which is the launcher's.
        while len(self.pids) < self._processes and not self._over.wait(LOOK_SECONDS):
            self.pids = {child.name: child.pid for child in multiprocessing.active_children() if child.pid is not None}
        watched = {name: psutil.Process(pid) for name, pid in self.pids.items()}
        while not self._over.wait(LOOK_SECONDS):
            while (self._out / "transcript" / round_name(self._round + 1)).exists():
                self._round += 1
            for name, process in list(watched.items()):
                try:
                    with process.oneshot():
                        sample = Sample(self._round, process.memory_info().rss, process.num_fds())
                except psutil.NoSuchProcess:
                    del watched[name]
                else:
                    self.samples[name].append(sample)
