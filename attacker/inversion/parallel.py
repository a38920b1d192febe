"""Chunks of work on all cores: one chunk a thread, and torch on one thread in each.

Chunks share nothing, so this wastes no time on barriers as torch's own threads do on small layers, least of all on a
busy machine; and a result cannot depend on how many cores there are.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from threading import Event
from typing import TypeVar

import torch

T = TypeVar("T")
Tick = Callable[[], None]
"""Called by the work at every step; raises when the work is to end early."""

PULSE = 0.1
"""Seconds between two looks at the work."""


class Stopped(Exception):  # noqa: N818
    """Raised inside a chunk's work when another part has failed or the caller has had enough."""


def in_parallel(jobs: Sequence[Callable[[Tick], T]], threads: int) -> Generator[list[tuple[int, T]], None, None]:
    """Yield, many times a second, the (number, result) of jobs that have ended since; closing it stops the others."""
    stop = Event()

    def tick() -> None:
        if stop.is_set():
            raise Stopped

    def run(job: Callable[[Tick], T]) -> T:
        tick()
        torch.set_num_threads(1)
        return job(tick)

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="inversion")
    try:
        numbers = {pool.submit(run, job): number for number, job in enumerate(jobs)}
        while numbers:
            ended = wait(numbers, timeout=PULSE, return_when=FIRST_COMPLETED).done
            yield [(numbers.pop(future), future.result()) for future in ended]
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


def in_order(looks: Generator[list[tuple[int, T]], None, None]) -> list[T]:
    """Wait for all numbered results."""
    found: dict[int, T] = {}
    with closing(looks):
        for ended in looks:
            found.update(ended)
    return [found[number] for number in sorted(found)]
