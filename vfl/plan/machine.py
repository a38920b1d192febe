"""This machine: its cores, memory and disk, and how fast it multiplies, copies and interprets."""

import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import torch

from vfl.device import one_thread

SIDE = 384
COPIED = 16 << 20
LEAST_SECONDS = 0.1
"""Time for each of the three floors: all of it takes less than a second of computing."""


@dataclass(frozen=True)
class Floors:
    """The price of one unit of each kind, in seconds of one core."""

    gflop: float
    gigabyte: float
    call: float
    """A hundred thousand turns of an empty loop."""


@dataclass(frozen=True)
class Machine:
    """What there is to run on."""

    cores: int
    memory: int
    """Bytes that are free for processes."""
    disk: int
    """Bytes that are free where results go."""


def this_machine(folder: Path) -> Machine:
    """Return what this machine has; `folder` is where the results will be."""
    while not folder.exists():
        folder = folder.parent
    return Machine(os.cpu_count() or 1, psutil.virtual_memory().available, shutil.disk_usage(folder).free)


def describe_machine() -> dict[str, str | int]:
    """Return what a reader of measured numbers must know of the machine."""
    return {"processor": _processor(), "cores": os.cpu_count() or 1, "memory": psutil.virtual_memory().total}


def measure_floors() -> Floors:
    """Measure the three floors on one thread, in its own CPU time: other load on the machine does not count."""
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    source, target = torch.ones(COPIED, dtype=torch.uint8), torch.empty(COPIED, dtype=torch.uint8)
    with one_thread():
        return Floors(
            gflop=_best(lambda: a @ b) / (2 * SIDE**3 / 1e9),
            gigabyte=_best(lambda: target.copy_(source)) / (COPIED / 1e9),
            call=_best(_loop),
        )


def best_of(one: Floors, other: Floors) -> Floors:
    """Return the lower of two measurements of each floor: other load only makes them higher."""
    return Floors(min(one.gflop, other.gflop), min(one.gigabyte, other.gigabyte), min(one.call, other.call))


def slower(now: Floors, then: Floors) -> dict[str, float]:
    """Return how many times longer each kind of work takes now."""
    before = asdict(then)
    return {kind: value / before[kind] for kind, value in asdict(now).items()}


def _best(work: Callable[[], object]) -> float:
    """Return the least time of several turns: any disturbance only makes one longer."""
    best, spent = float("inf"), 0.0
    while spent < LEAST_SECONDS:
        began = time.thread_time()
        work()
        took = time.thread_time() - began
        best, spent = min(best, took), spent + took
    return best


def _loop() -> None:
    for _ in range(100_000):
        pass


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
