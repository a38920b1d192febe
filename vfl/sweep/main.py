"""`cafe sweep`: lay out the cells, run those that are not done yet, keep one table of them all."""

import contextlib
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from vfl.errors import InterruptedRunError, RunFailedError, UserError
from vfl.report.main import report_if_possible
from vfl.sweep.cell import Row, finished
from vfl.sweep.local import run_here
from vfl.sweep.on_ray import run_on_ray
from vfl.sweep.plan import Cell, Plan, cell_folder
from vfl.sweep.progress import Watch
from vfl.sweep.results.numbers import NUMBERS
from vfl.sweep.results.table import Rows, pivot
from vfl.sweep.results.text import print_table
from vfl.sweep.results.write import write_results

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, what `timeout`, Docker and systemd send, and a terminal that is closed."""


@dataclass(frozen=True)
class Engine:
    """Where cells run: `local`, so many at a time, or `ray`, on the cluster at an address."""

    name: Literal["local", "ray"] = "local"
    jobs: int | None = None
    address: str | None = None

    def run(self, cells: list[Cell], out: Path, watch: Watch) -> Generator[tuple[Cell, Row]]:
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


def run_sweep(
    plan: Plan, out: Path, engine: Engine = LOCAL, quiet: bool = False, chosen: Sequence[Cell] | None = None
) -> None:
    """Run every cell (or every chosen one) that is not done yet; the tables in `out` are written anew after each."""
    chosen = plan.cells if chosen is None else chosen
    there = {cell.name: finished(cell.config, cell_folder(out, cell)) for cell in plan.cells}
    rows: Rows = {name: row for name, row in there.items() if row}
    write_results(out, plan, rows)
    watch = Watch(len(chosen), NUMBERS[plan.table.value], quiet)
    watch.kept(sum(cell.name in rows for cell in chosen))
    with _signals_as_ctrl_c():
        try:
            missing = [cell for cell in chosen if cell.name not in rows]
            with contextlib.closing(engine.run(missing, out, watch)) as ending:
                for cell, row in ending:
                    rows[cell.name] = row
                    write_results(out, plan, rows)
        except KeyboardInterrupt:
            done = sum(cell.name in rows for cell in chosen)
            raise InterruptedRunError(
                f"stopped with {done} of {len(chosen)} cells done; their results are in {out}, "
                f"and the same command goes on from there"
            ) from None
        finally:
            watch.close()
            report_if_possible(out)
    print_table(pivot(plan, rows))
    print(f"Everything is in {out}")
    _raise_if_failed(rows, out)


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
