"""`cafe sweep`: lay out the cells, run those that are not done yet, keep one table of them all."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import FrameType

from sweep.cell import Row, finished, run_cell
from sweep.numbers import NUMBERS
from sweep.plan import Cell, Plan
from sweep.progress import Watch
from sweep.show import print_table
from sweep.table import Rows, pivot
from sweep.write import write_results
from vfl.errors import InterruptedRunError, RunFailedError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, what `timeout`, Docker and systemd send, and a terminal that is closed."""


def run_sweep(plan: Plan, out: Path, jobs: int | None = None, quiet: bool = False) -> None:
    """Run every cell that is not done yet; the tables in `out` are written anew after each."""
    there = {cell.name: finished(cell.config, cell_folder(out, cell)) for cell in plan.cells}
    rows: Rows = {name: row for name, row in there.items() if row}
    write_results(out, plan, rows)
    watch = Watch(len(plan.cells), NUMBERS[plan.table.value], quiet)
    watch.kept(len(rows))
    with _signals_as_ctrl_c():
        try:
            _run_missing(plan, out, rows, jobs or default_jobs(plan), watch)
        except KeyboardInterrupt:
            write_results(out, plan, rows)
            raise InterruptedRunError(
                f"stopped with {len(rows)} of {len(plan.cells)} cells done; their results are in {out}, "
                f"and the same command goes on from there"
            ) from None
        finally:
            watch.close()
    print_table(pivot(plan, rows))
    print(f"Everything is in {out}")
    _raise_if_failed(rows, out)


def cell_folder(out: Path, cell: Cell) -> Path:
    """Return where a cell's run is."""
    return out / "cells" / cell.folder


def default_jobs(plan: Plan) -> int:
    """Return how many cells at a time: as many as have a core for each of their processes, at least one."""
    processes = max(cell.config.federation.workers for cell in plan.cells) + 1
    return max(1, (os.cpu_count() or 1) // processes)


def _run_missing(plan: Plan, out: Path, rows: Rows, jobs: int, watch: Watch) -> None:
    """Run the cells that have no row, some at a time; nothing is left running, whatever happens."""
    stop = threading.Event()

    def run(cell: Cell) -> Row:
        watch.begins(cell.name)
        row = run_cell(cell.config, cell_folder(out, cell), stop)
        watch.ends(cell.name, row)
        return row

    waiting: dict[Future[Row], Cell] = {}
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for cell in plan.cells:
                if cell.name not in rows:
                    waiting[pool.submit(run, cell)] = cell
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    rows[waiting.pop(future).name] = future.result()
                    write_results(out, plan, rows)
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            ended = {future: cell for future, cell in waiting.items() if not future.cancelled()}
            rows |= {cell.name: future.result() for future, cell in ended.items() if not future.exception()}


@contextlib.contextmanager
def _signals_as_ctrl_c() -> Iterator[None]:
    """Let the first signal stop the sweep; further ones do not disturb how it stops its cells."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = [one for one in STOP_SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]

    def stop(_number: int, _frame: FrameType | None) -> None:
        for one in heeded:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, stop) for one in heeded}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _raise_if_failed(rows: Rows, out: Path) -> None:
    failed = [name for name, row in rows.items() if not row.complete]
    if failed:
        raise RunFailedError(
            f"{len(failed)} of {len(rows)} cells failed ({'; '.join(failed)}): {out / 'table.md'} says why; "
            f"the same command tries them again"
        )
