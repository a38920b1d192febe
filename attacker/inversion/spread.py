"""Where the chunks of step III are worked on: on this machine's cores, or all over a Ray cluster.

There they are tasks of a core each, on one thread as they are here: so the numbers are the same. A node that is lost
takes its chunks with it, and Ray starts those again elsewhere.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from threading import Event
from typing import Any, TypeVar

import torch
from torch import Tensor

from attacker.inversion.attempt import Chunk, Problem, Tick
from attacker.inversion.values import ADDRESS, InversionOptions
from vfl.cluster import connect, largest
from vfl.errors import RunFailedError, UserError

LOST_NODES = 5
"""How often a chunk is started again because its node was lost."""

Done = tuple[Tensor, Tensor]


def spread(chunks: Sequence[Chunk], options: InversionOptions) -> Generator[list[tuple[int, Done]], None, None]:
    """Yield, many times a second, the (number, result) of chunks that are done since; closing it stops the others."""
    if options.engine == "ray":
        return _on_ray(chunks, options.address)
    on_a_card = any(torch.device(chunk.problem.device).type != "cpu" for chunk in chunks)
    return in_parallel(chunks, 1 if on_a_card else torch.get_num_threads())  # one chunk fills a graphics card


def _on_ray(chunks: Sequence[Chunk], address: str | None) -> Generator[list[tuple[int, Done]], None, None]:
    ray = connect(address, ADDRESS)
    waiting: dict[Any, int] = {}
    try:
        waiting.update(_submit(ray, chunks))
        while waiting:
            ended = ray.wait(list(waiting), num_returns=len(waiting), timeout=PULSE)[0]
            yield [(waiting.pop(reference), _result(ray, reference)) for reference in ended]
    finally:
        for reference in waiting:
            with contextlib.suppress(Exception):  # whatever became of the cluster, this one is not wanted any more
                ray.cancel(reference, force=True)


def _submit(ray: Any, chunks: Sequence[Chunk]) -> dict[Any, int]:
    gpus = int(any(torch.device(chunk.problem.device).type == "cuda" for chunk in chunks))
    for resource, needed in (("CPU", 1), ("GPU", gpus)):
        if largest(ray, resource) < needed:
            raise UserError(f"{ADDRESS}: no node of the cluster has a {resource} to give")
    task = ray.remote(max_retries=LOST_NODES, num_cpus=1, num_gpus=gpus)(_work_there)
    problems = {id(chunk.problem): chunk.problem for chunk in chunks}
    # to each node once, not with every chunk; the graphics card that a task is given is the only one it sees
    anywhere = {key: replace(problem, device=torch.device(problem.device).type) for key, problem in problems.items()}
    sent = {key: ray.put(problem) for key, problem in anywhere.items()}
    return {
        task.remote(
            sent[id(chunk.problem)], chunk.options, chunk.samples, chunk.targets, chunk.best, chunk.number,
            chunk.parameters,
        ): number
        for number, chunk in enumerate(chunks)
    }  # fmt: skip


def _work_there(problem: Problem, *rest: Any) -> Done:
    torch.set_num_threads(1)
    return Chunk(problem, *rest)(lambda: None)


def _result(ray: Any, reference: Any) -> Done:
    try:
        x, residual = ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # what failed here would have failed locally, in the same words
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
    except ray.exceptions.RayError as error:
        raise RunFailedError(f"Ray gave step III up: {str(error).strip().splitlines()[0]}") from None
    return x, residual


T = TypeVar("T")
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
