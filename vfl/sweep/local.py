"""The cells of a sweep on this machine, some at a time."""

import os
import threading
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from vfl.sweep.cell import Row, run_cell
from vfl.sweep.plan import Cell, cell_folder
from vfl.sweep.progress import Watch


def run_here(cells: list[Cell], out: Path, watch: Watch, jobs: int | None) -> Generator[tuple[Cell, Row]]:
    """Yield each cell with its row as they end; nothing is left running, whatever happens."""
    stop = threading.Event()

    def run(cell: Cell) -> Row:
        watch.begins(cell.name)
        row = run_cell(cell.config, cell_folder(out, cell), stop)
        watch.ends(cell.name, row)
        return row

    with ThreadPoolExecutor(jobs or default_jobs(cells)) as pool:
        try:
            waiting: dict[Future[Row], Cell] = {pool.submit(run, cell): cell for cell in cells}
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


def default_jobs(cells: list[Cell]) -> int:
    """Return how many cells at a time: as many as have a core for each of their processes, at least one."""
    processes = max((cell.config.federation.workers for cell in cells), default=0) + 1
    return max(1, (os.cpu_count() or 1) // processes)
