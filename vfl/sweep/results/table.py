"""The pivot table: one number over the axes, the best of each row, and what training costs there."""

import itertools
import math
from dataclasses import dataclass
from statistics import fmean, stdev

from vfl.folder.schema import Number
from vfl.folder.sweep_results import Best, Place
from vfl.sweep.cell import Row
from vfl.sweep.plan import Cell, Plan
from vfl.sweep.results import NUMBERS

Rows = dict[str, Row]
"""The rows that there are so far, by the cells' names."""

PRICE = ("train.loss_end", "train.test_accuracy", "seconds.round", "bytes.round")
"""What a row costs those who train, measured in its cells without an attack."""


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    name: str
    values: dict[str, str]
    """Its place on the axes of the rows."""
    entries: tuple[Place, ...]
    best: Best | None
    price: tuple[float | None, ...]


@dataclass(frozen=True)
class Table:
    """The whole table, ready to be printed or painted."""

    number: Number
    row_axis: str
    column_axis: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    singles: tuple[tuple[str, Place], ...]
    note: str
    baseline: float | None
    along: str | None = None
    """The axis of the rows that curves are drawn along."""

    @property
    def best_title(self) -> str:
        """Return what the best of a row is called."""
        return "best attacker" if self.number.key.startswith("attack.") else "best"

    @property
    def priced(self) -> bool:
        """Whether any row has cells that say what training costs."""
        return any(value is not None for line in self.lines for value in line.price)


def pivot(plan: Plan, rows: Rows) -> Table:
    """Put the rows that there are so far into the table that the plan asks for."""
    number = NUMBERS[plan.table.value]
    row_axes, column_axes = _sides(plan)
    columns = {name: values for name, values in _choices(plan, column_axes) if _attacked(plan, values, number)}
    lines = []
    for name, values in _choices(plan, row_axes):
        cells = _cells(plan, values)
        if cells:
            entries = tuple(_entry(_cells(plan, values | column), rows, number) for column in columns.values())
            best = _best(entries, tuple(columns), number)
            lines.append(Line(name, values, entries, best, _price(cells, rows)))
    singles = tuple((cell.name, _entry([cell], rows, number)) for cell in plan.cells if not cell.values)
    rest = [axis for axis in plan.axes if axis not in row_axes + column_axes]
    note = f"Means over {' and '.join(rest)}." if rest else ""
    if any(place.half is not None for line in lines for place in line.entries):
        note += " After ±: half of the 95 % interval of the mean over n seeds (Student's t)."
    baselines = [row.numbers.get("attack.psnr_baseline") for row in rows.values()]
    return Table(
        number,
        ", ".join(row_axes) or "cell",
        ", ".join(column_axes),
        tuple(name or number.title for name in columns),
        tuple(lines),
        singles,
        note,
        _common(baselines) if number.unit == "dB" else None,
        plan.table.along,
    )


def _sides(plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the axes of the rows and of the columns: as the file says, else the first two."""
    rows, columns = plan.table.rows, plan.table.columns
    if rows is None:
        rows = tuple(axis for axis in plan.axes if axis not in (columns or ()))[:1]
    if columns is None:
        columns = tuple(axis for axis in plan.axes if axis not in rows)[:1]
    return rows, columns


def _choices(plan: Plan, axes: tuple[str, ...]) -> list[tuple[str, dict[str, str]]]:
    choices = itertools.product(*(plan.axes[axis] for axis in axes))
    return [(", ".join(choice), dict(zip(axes, choice, strict=True))) for choice in choices]


def _cells(plan: Plan, values: dict[str, str]) -> list[Cell]:
    return [cell for cell in plan.cells if cell.values and values.items() <= cell.values.items()]


def _attacked(plan: Plan, values: dict[str, str], number: Number) -> bool:
    """Whether a column can have a value: those without any attack only say what training costs."""
    cells = _cells(plan, values)
    attacked = any(cell.config.attack.name != "none" for cell in cells)
    return bool(cells) and (attacked or not number.key.startswith("attack."))


def _entry(cells: list[Cell], rows: Rows, number: Number) -> Place:
    there = [rows[cell.name] for cell in cells if cell.name in rows]
    done = [row for row in there if row.complete]
    names = [cell.name for cell in cells]
    if done:
        known = [value for row in done if (value := row.numbers.get(number.key)) is not None]
        if not known:
            return Place(state="done", value=None, cells=names, text="no value")
        value, half = fmean(known), _half_interval(cells, known)
        beside = {} if half is None else {"half": half, "runs": len(known)}
        text = number.text(value) + ("" if half is None else f" ± {number.text(half)} (n = {len(known)})")
        return Place(state="done", value=value, cells=names, text=text, **beside)
    state = "failed" if there else "not run" if cells else "skipped"
    return Place(state=state, value=None, cells=names, text="·" if state == "skipped" else state)


def _half_interval(cells: list[Cell], values: list[float]) -> float | None:
    """Return half of the 95 % interval of the mean by Student's t, for runs that differ in nothing but the seed."""
    first, *others = (cell.config.model_copy(update={"seed": 0}) for cell in cells)
    if len(values) < 2 or any(other != first for other in others):
        return None
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def _best(entries: tuple[Place, ...], columns: tuple[str, ...], number: Number) -> Best | None:
    found = [Best(value=e.value, column=name) for e, name in zip(entries, columns, strict=True) if e.value is not None]
    choose = max if number.highest_is_best else min
    return choose(found, key=lambda best: best.value) if found else None


def _price(cells: list[Cell], rows: Rows) -> tuple[float | None, ...]:
    there = [rows[cell.name] for cell in cells if cell.config.attack.name == "none" and cell.name in rows]
    return tuple(_mean([row.numbers.get(key) for row in there]) for key in PRICE)


def _common(values: list[float | None]) -> float | None:
    """Return the value that all agree on: cells on different data have no one baseline."""
    known = [value for value in values if value is not None]
    return known[0] if known and max(known) - min(known) < 0.05 else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
