"""Where the cells of a sweep run: on this machine, some at a time, or as tasks of a Ray cluster.

There each cell runs in a folder of its own on a node, which is sent back whole. The cells of a node that is lost are
started again elsewhere by Ray. A cell that fails by itself becomes a row that says so, as on one machine.
"""

import os
import tempfile
import threading
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vfl.cluster import connect, largest, leave
from vfl.config import RunConfig, parse_config
from vfl.errors import UserError
from vfl.files import write_atomically
from vfl.folder import clear_run
from vfl.sweep.cell import Row, run_cell
from vfl.sweep.plan import Cell, cell_folder
from vfl.sweep.progress import SweepProgress


@dataclass(frozen=True)
class Engine:
    """Where cells run: `local`, so many at a time, or `ray`, on the cluster at an address."""

    name: str = "local"
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
    if name not in ("local", "ray"):
        raise UserError(f"--engine {name}: choose local or ray")
    if name == "local" and address is not None:
        raise UserError(f"--address {address}: belongs to --engine ray")
    if name == "ray" and jobs is not None:
        raise UserError(f"--jobs {jobs}: belongs to --engine local; a Ray cluster knows its cores")
    return Engine(name, jobs, address)


def run_here(cells: list[Cell], out: Path, watch: SweepProgress, jobs: int | None) -> Generator[tuple[Cell, Row]]:
    """Yield each cell with its row as they end; no cell is left running after an error or Ctrl-C."""
    stop = threading.Event()

    def run(cell: Cell) -> Row:
        watch.begins(cell.name)
        row = run_cell(cell.config, cell_folder(out, cell), stop)
        watch.ended(cell.name, row)
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


LOST_NODES = 5
"""How often a cell is started again because its node was lost."""
LOOK_SECONDS = 1.0

Files = dict[str, bytes]


def run_on_ray(cells: list[Cell], out: Path, watch: SweepProgress, address: str | None) -> Generator[tuple[Cell, Row]]:
    """Yield each cell with its row as they end, from a cluster (`auto`, HOST:PORT) or one made on this machine."""
    _refuse_unfit(cells)
    option = "--engine ray" if address is None else f"--address {address}"
    ray = connect(address, option, {name: value for name, value in os.environ.items() if name.startswith("CAFE_")})
    try:
        waiting = _submit(ray, cells)
        for cell in waiting.values():
            watch.begins(cell.name)
        while waiting:
            for reference in ray.wait(list(waiting), num_returns=1, timeout=LOOK_SECONDS)[0]:
                cell = waiting.pop(reference)
                row = _receive(ray, reference, cell_folder(out, cell))
                watch.ended(cell.name, row)
                yield cell, row
    finally:
        leave()  # cells that still run are ended with the sweep


def _submit(ray: Any, cells: list[Cell]) -> dict[Any, Cell]:
    """Hand all cells to the cluster, with what each needs of a node."""
    cores = largest(ray, "CPU")
    if cores < 1:
        raise UserError("--engine ray: no node of the cluster has a CPU to give")
    graphics = [cell.name for cell in cells if _gpus(cell.config)]
    if graphics and largest(ray, "GPU") < 1:  # Ray would wait for one for ever
        raise UserError(f"--engine ray: no node of the cluster has a GPU, which device: cuda asks for ({graphics[0]})")
    run = ray.remote(max_retries=LOST_NODES)(_run_there)
    return {
        run.options(num_cpus=min(cores, cell.config.federation.workers + 1), num_gpus=_gpus(cell.config)).remote(
            cell.config.model_dump(mode="json"), str(Path.cwd())
        ): cell
        for cell in cells
    }


def _refuse_unfit(cells: list[Cell]) -> None:
    """Refuse cells whose attack uses Ray too: its tasks would wait for cores that the cells themselves hold.

    Refuse `cuda:N`, too: Ray chooses the GPU of each task, which then is the only one it sees.
    """
    for cell in cells:
        has, inversion = f"--engine ray: cell {cell.name} has", cell.config.attack.options.get("inversion")
        if isinstance(inversion, dict) and inversion.get("engine") == "ray":
            raise UserError(f"{has} attack.inversion.engine ray too; its cells or step III, not both")
        device = cell.config.device
        numbered = next((name for name in (device.attack, device.workers) if name.startswith("cuda:")), None)
        if numbered is not None:
            raise UserError(f"{has} device {numbered}; Ray gives each cell a GPU: say cuda")


def _gpus(config: RunConfig) -> int:
    """Return how many GPUs a cell must have; `auto` takes what is there."""
    return int(any(name.startswith("cuda") for name in (config.device.attack, config.device.workers)))


def _run_there(tree: dict[str, Any], where: str) -> tuple[Row, Files]:
    """Run a cell at a node, and return its row with everything that its folder holds."""
    if Path(where).is_dir():  # on the same machine or file system, paths and plug-ins beside the caller are found
        os.chdir(where)
    with tempfile.TemporaryDirectory(prefix="cafe-cell-") as name:
        folder = Path(name)
        row = run_cell(parse_config(tree, "the cell"), folder)
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return row, files


def _receive(ray: Any, reference: Any, folder: Path) -> Row:
    """Write what a task returned into the cell's folder."""
    try:
        row, files = ray.get(reference)
    except ray.exceptions.RayError as error:
        return Row(f"Ray gave this cell up: {str(error).strip().splitlines()[0]}")
    folder.mkdir(parents=True, exist_ok=True)
    clear_run(folder)
    for name, content in files.items():
        write_atomically(folder / name, partial(Path.write_bytes, data=content))
    assert isinstance(row, Row)
    return row
