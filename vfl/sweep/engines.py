"""Where the cells of a sweep run: on this machine, some at a time, or on a Ray cluster."""

import os
import threading
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vfl.errors import UserError
from vfl.sweep.cell import Row, run_cell
from vfl.sweep.on_ray import run_on_ray
from vfl.sweep.plan import Cell, cell_folder
from vfl.sweep.progress import SweepProgress


@dataclass(frozen=True)
class Engine:
    """Where cells run: `local`, so many at a time, or `ray`, on the cluster at an address."""

    name: Literal["local", "ray"] = "local"
    jobs: int | None = None
    address: str | None = None

    def run(self, cells: list[Cell], out: Path, watch: SweepProgress) -> Generator[tuple[Cell, Row]]:
        """Yield each cell with its row as they end."""
        if self.name == "ray":
            return run_on_ray(cells, out, watch, self.address)
        return run_here(cells, out, watch, self.jobs)


LOCAL = Engine()


def choose_engine(name: str, jobs: int | None = None, address: str | None = None) -> Engine:
    """Return the engine that the command line asks for."""
    if name == "local":
        if address is not None:
            raise UserError(f"--address {address}: belongs to --engine ray")
        return Engine("local", jobs)
    if name == "ray":
        if jobs is not None:
            raise UserError(f"--jobs {jobs}: belongs to --engine local; a Ray cluster knows its cores")
        return Engine("ray", address=address)
    raise UserError(f"--engine {name}: choose local or ray")


def run_here(cells: list[Cell], out: Path, watch: SweepProgress, jobs: int | None) -> Generator[tuple[Cell, Row]]:
    """Yield each cell with its row as they end; no cell is left running after an error or Ctrl-C."""
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
