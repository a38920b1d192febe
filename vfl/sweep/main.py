"""`cafe sweep`: lay out the cells, run those that are not done yet, keep one table of them all."""

import contextlib
import json
import signal
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from vfl.datasets import Data
from vfl.datasets.slices import load_data
from vfl.errors import InterruptedRunError, RunFailedError, UserError
from vfl.local.launch import check
from vfl.local.stop import as_ctrl_c
from vfl.report.main import report_if_possible
from vfl.sweep.cell import finished
from vfl.sweep.engines import LOCAL, Engine
from vfl.sweep.plan import Cell, Plan, Problems, cell_folder
from vfl.sweep.progress import SweepProgress
from vfl.sweep.results import NUMBERS
from vfl.sweep.results.table import Rows, pivot
from vfl.sweep.results.text import print_table
from vfl.sweep.results.write import write_results

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Sent by Ctrl-C; by `timeout`, Docker and systemd; by a terminal that is closed."""


def run_sweep(
    plan: Plan, out: Path, engine: Engine = LOCAL, *, quiet: bool = False, chosen: Sequence[Cell] | None = None
) -> None:
    """Run every cell (or every chosen one) that is not done yet; the tables in `out` are written anew after each."""
    chosen = plan.cells if chosen is None else chosen
    there = {cell.name: finished(cell.config, cell_folder(out, cell)) for cell in plan.cells}
    rows: Rows = {name: row for name, row in there.items() if row}
    write_results(out, plan, rows)
    watch = SweepProgress(len(chosen), NUMBERS[plan.table.value], quiet)
    watch.kept(sum(cell.name in rows for cell in chosen))
    with as_ctrl_c(*STOP_SIGNALS):
        try:
            missing = [cell for cell in chosen if cell.name not in rows]
            with contextlib.closing(engine.run(missing, out, watch)) as ending:
                for cell, row in ending:
                    rows[cell.name] = row
                    write_results(out, plan, rows)
        except KeyboardInterrupt:
            done = sum(cell.name in rows for cell in chosen)
            on = f"their results are in {out}, and the same command goes on from there"
            raise InterruptedRunError(f"stopped with {done} of {len(chosen)} cells done; {on}") from None
        finally:
            watch.close()
            report_if_possible(out)
    print_table(pivot(plan, rows))
    print(f"Everything is in {out}")
    failed = [name for name, row in rows.items() if not row.complete]
    if failed:
        why = f"{out / 'table.md'} says why; the same command tries them again"
        raise RunFailedError(f"{len(failed)} of {len(rows)} cells failed ({'; '.join(failed)}): {why}")


def check_cells(plan: Plan, path: Path) -> None:
    """Put every cell through the checks that `cafe run` begins with; one error names all problems."""
    problems = Problems()
    by_data: dict[str, list[Cell]] = defaultdict(list)
    for cell in plan.cells:
        # The label holder decides which file's labels are read.
        read = [cell.config.data.model_dump(mode="json"), cell.config.federation.label_holder]
        by_data[json.dumps(read, sort_keys=True)].append(cell)
    for cells in by_data.values():  # one data set in memory at a time
        data: Data | None = None
        for cell in cells:
            try:
                if data is None:
                    data = load_data(cell.config)
                check(cell.config, data)
            except UserError as error:
                problems.add(str(error), cell.name)
            except Exception:  # a bug in a plug-in: its cell will fail, and the log there has the traceback  # nosec B112
                continue
    problems.raise_if_any(path, len(plan.cells))
