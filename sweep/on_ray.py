"""The cells of a sweep as tasks of a Ray cluster: each in a folder of its own where it runs, then sent home whole.

A node that is lost takes its cells with it, and Ray starts those again elsewhere. A cell that fails by itself is a row,
as it is on one machine.
"""

import logging
import os
import tempfile
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

from sweep.cell import Row, run_cell
from sweep.plan import Cell, cell_folder
from sweep.progress import Watch
from vfl.config import RunConfig, parse_config
from vfl.errors import RunFailedError, UserError
from vfl.results import clear_run, write_atomically

LOST_NODES = 5
"""How often a cell is started again because its node was lost."""

LOOK_SECONDS = 1.0

Files = dict[str, bytes]


def run_on_ray(cells: list[Cell], out: Path, watch: Watch, address: str | None) -> Generator[tuple[Cell, Row]]:
    """Yield each cell with its row as they end, from a cluster (`auto`, HOST:PORT) or one made on this machine."""
    ray = _connect(address)
    try:
        waiting = _submit(ray, cells)
        for cell in waiting.values():
            watch.begins(cell.name)
        while waiting:
            for reference in ray.wait(list(waiting), num_returns=1, timeout=LOOK_SECONDS)[0]:
                cell = waiting.pop(reference)
                row = _come_home(ray, reference, cell_folder(out, cell))
                watch.ends(cell.name, row)
                yield cell, row
    finally:
        ray.shutdown()  # what still runs ends with whoever asked for it


def _connect(address: str | None) -> Any:
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray: Ray is not installed here; pip install 'cafe-vfl[ray]'") from None
    variables = {name: value for name, value in os.environ.items() if name.startswith("CAFE_")}
    try:
        ray.init(address, runtime_env={"env_vars": variables}, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise RunFailedError(f"--address {address}: no Ray cluster answers there ({error})") from None
    return ray


def _submit(ray: Any, cells: list[Cell]) -> dict[Any, Cell]:
    """Hand all cells to the cluster, with what each needs of a node."""
    cores = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
    if cores < 1:
        raise RunFailedError("the Ray cluster has no node with a CPU to give")
    run = ray.remote(max_retries=LOST_NODES)(_run_there)
    return {
        run.options(num_cpus=min(cores, cell.config.federation.workers + 1), num_gpus=_gpus(cell.config)).remote(
            cell.config.model_dump(mode="json"), str(Path.cwd())
        ): cell
        for cell in cells
    }


def _gpus(config: RunConfig) -> int:
    """Return how many GPUs a cell must have; `auto` takes what is there."""
    return 1 if config.device.startswith("cuda") else 0


def _run_there(tree: dict[str, Any], where: str) -> tuple[Row, Files]:
    """Run a cell at a node, and return its row with everything that its folder holds."""
    if Path(where).is_dir():  # on the same machine or file system, paths and plug-ins beside the caller are found
        os.chdir(where)
    with tempfile.TemporaryDirectory(prefix="cafe-cell-") as name:
        folder = Path(name)
        row = run_cell(parse_config(tree, "the cell"), folder)
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return row, files


def _come_home(ray: Any, reference: Any, folder: Path) -> Row:
    """Write down what a task brought."""
    try:
        row, files = ray.get(reference)
    except ray.exceptions.RayError as error:
        return Row(f"Ray gave this cell up: {str(error).strip().splitlines()[0]}")
    folder.mkdir(parents=True, exist_ok=True)
    clear_run(folder)
    for name, content in files.items():
        write_atomically(folder / name, partial(_put, content))
    assert isinstance(row, Row)
    return row


def _put(content: bytes, path: Path) -> None:
    path.write_bytes(content)
