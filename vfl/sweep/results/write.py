"""A sweep's folder: its tables and pictures, each written whole or not at all."""

import csv
import io
import os
import platform
import time
from pathlib import Path
from typing import Any

from vfl.files import write_text
from vfl.folder.sweep_results import CellRow, Pivot, PivotLine, SweepResults, save_results
from vfl.folder.versions import made_with
from vfl.sweep.cell import Row
from vfl.sweep.plan import Cell, Plan, cell_folder
from vfl.sweep.results import NUMBERS
from vfl.sweep.results.pictures import save_curves, save_heatmap
from vfl.sweep.results.table import Rows, Table, pivot
from vfl.sweep.results.text import PRICE_TITLES, markdown, price_texts

FIXED = ("cell", "ended", "error", "commit", "seed", "attack.name", "attack.used", *NUMBERS)


def write_results(out: Path, plan: Plan, rows: Rows) -> Table:
    """Write all tables from the rows that there are so far, in the plan's order; return the pivot."""
    rows = {cell.name: rows[cell.name] for cell in plan.cells if cell.name in rows}
    table = pivot(plan, rows)
    write_text(out / "results.csv", as_csv(plan, rows))
    save_results(out, as_results(plan, rows, table))
    write_text(out / "table.md", markdown(plan.name, table, rows))
    save_heatmap(out / "heatmap.png", plan.name, table)
    save_curves(out / "curves.png", plan.name, table)
    return table


def as_csv(plan: Plan, rows: Rows) -> str:
    """Return one line a cell: its place on the axes, how it ended, its numbers."""
    text = io.StringIO()
    # An axis may be called as a number is, say `seed`; both keep their column.
    headers = {axis: f"axis.{axis}" if axis in FIXED else axis for axis in plan.axes}
    writer = csv.DictWriter(text, ["cell", *headers.values(), *FIXED[1:]], lineterminator="\n")
    writer.writeheader()
    for cell in plan.cells:
        if cell.name in rows:
            facts = _facts(cell, rows[cell.name])
            facts["attack.used"] = " ".join(facts["attack.used"])
            writer.writerow(facts | {headers[axis]: value for axis, value in cell.values.items()})
    return text.getvalue()


def as_results(plan: Plan, rows: Rows, table: Table) -> SweepResults:
    """Return everything: versions, the axes, each cell's row with its config and commit, and the table."""
    cells = [cell for cell in plan.cells if cell.name in rows]
    beside: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "system": platform.system()},
        "axes": {axis: list(values) for axis, values in plan.axes.items()},
        "table": plan.table.model_dump(mode="json"),
    }
    return SweepResults(
        sweep=plan.name,
        versions={**made_with()},
        planned=len(plan.cells),
        rows=[_row(cell, rows[cell.name]) for cell in cells],
        pivot=_pivot(table),
        **beside,
    )


def _row(cell: Cell, row: Row) -> CellRow:
    folder, config = cell_folder(Path(), cell).as_posix(), cell.config.model_dump(mode="json")
    return CellRow(axes=cell.values, **_facts(cell, row), **_beside(row), folder=folder, config=config)


def _pivot(table: Table) -> Pivot:
    """Return the table as `cafe report` reads it: numbers, and the words for them."""
    number = table.number
    return Pivot(
        number=number.key,
        title=number.title,
        limits=number.limits,
        row_axis=table.row_axis,
        column_axis=table.column_axis,
        columns=list(table.columns),
        lines=[
            PivotLine(
                name=line.name,
                entries=list(line.entries),
                best=line.best,
                price=[*price_texts(line)] if table.priced else [],
            )
            for line in table.lines
        ],
        price_titles=[*PRICE_TITLES] if table.priced else [],
        note=table.note,
        baseline=table.baseline,
        baseline_text="" if table.baseline is None else f"{number.text(table.baseline)} {number.unit}",
    )


def _facts(cell: Cell, row: Row) -> dict[str, Any]:
    return {
        "cell": cell.name,
        "ended": "complete" if row.complete else "failed",
        "error": row.error,
        "commit": row.commit,
        "seed": cell.config.seed,
        "attack.name": cell.config.attack.name,
        "attack.used": list(row.used),
        **{key: row.numbers.get(key) for key in NUMBERS},
    }


def _beside(row: Row) -> dict[str, Any]:
    """Return what a row has besides its numbers, where it has that."""
    return {"curves": row.curves} if row.curves else {}
