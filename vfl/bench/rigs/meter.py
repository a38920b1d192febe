"""Meters for the processes of a run that this process starts: time computed, memory, open descriptors."""

import multiprocessing
import statistics
import time
from abc import abstractmethod
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from vfl.folder.lookout import Lookout
from vfl.folder.transcript.files import round_name

LOOK_SECONDS = 0.1
NEAR = 9
"""How many samples about the middle of a tenth of the rounds stand for it."""


class Meter(Lookout):
    """Looks at every process that `run_federation` starts, again and again until the run is over."""

    def __init__(self, processes: int) -> None:
        """Expect so many processes."""
        super().__init__(LOOK_SECONDS)
        self._processes = processes
        self.pids: dict[str, int] = {}
        self._watched: dict[str, psutil.Process] = {}

    @abstractmethod
    def _note(self, name: str, process: psutil.Process) -> None:
        """Take a process's numbers now."""

    def look(self) -> None:
        """Take the numbers of all processes that are there."""
        # Only until all are there: active_children also reaps ended children, which the launcher waits for.
        if len(self.pids) < self._processes:
            children = multiprocessing.active_children()
            self.pids = {child.name: child.pid for child in children if child.pid is not None}
            new = {name: pid for name, pid in self.pids.items() if name not in self._watched}
            with suppress(psutil.NoSuchProcess):
                self._watched |= {name: psutil.Process(pid) for name, pid in new.items()}
        for name, process in list(self._watched.items()):
            try:
                self._note(name, process)
            except psutil.NoSuchProcess:
                del self._watched[name]


class CostMeter(Meter):
    """The time that each process has computed, and the most memory that it had."""

    def __init__(self, processes: int) -> None:
        super().__init__(processes)
        self._computed: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self.peak: defaultdict[str, int] = defaultdict(int)
        self.shared = 0
        """Bytes of one worker that other processes have in memory too."""

    def __enter__(self) -> Self:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak of an earlier run
        return super().__enter__()

    def computed(self, name: str, until: float = float("inf")) -> float:
        """Return the seconds of a core that a process had used at a time (Unix seconds), or at its end."""
        before = [spent for moment, spent in self._computed[name] if moment <= until]
        return before[-1] if before else 0.0

    def _note(self, name: str, process: psutil.Process) -> None:
        spent = process.cpu_times()
        self._computed[name].append((time.time(), spent.user + spent.system))
        self.peak[name] = max(self.peak[name], peak_memory(process))
        if name == "worker 0" and len(self._computed[name]) % 20 == 10:
            full = process.memory_full_info()
            self.shared = full.rss - full.uss


@dataclass(frozen=True)
class Sample:
    """A process after some rounds: its memory in bytes, its open descriptors."""

    round: int
    memory: int
    descriptors: int


class GrowthMeter(Meter):
    """Each process's memory and open descriptors as the rounds go on; the run's transcript, if any, counts them."""

    def __init__(self, processes: int, out: Path) -> None:
        super().__init__(processes)
        self._out = out
        self.samples: defaultdict[str, list[Sample]] = defaultdict(list)
        self._round = 0

    def tenth(self, name: str, which: int, rounds: int) -> Sample:
        """Return what a process needed in a tenth of the rounds: the medians of a few samples in its middle."""
        middle = (which - 0.5) * rounds / 10
        near = sorted(self.samples[name], key=lambda sample: abs(sample.round - middle))[:NEAR]
        memory, descriptors = ([getattr(one, what) for one in near] for what in ("memory", "descriptors"))
        return Sample(round(middle), int(statistics.median(memory)), int(statistics.median(descriptors)))

    def most(self, name: str) -> int:
        """Return the most memory that a process had."""
        return max(sample.memory for sample in self.samples[name])

    def _note(self, name: str, process: psutil.Process) -> None:
        while (self._out / "transcript" / round_name(self._round + 1)).exists():
            self._round += 1
        with process.oneshot():
            self.samples[name].append(Sample(self._round, process.memory_info().rss, process.num_fds()))


def peak_memory(process: psutil.Process) -> int:
    """Return the most memory that a process ever had, where the system tells; else what it has now."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    return int(process.memory_info().rss)
