"""The table as curves: the value along an axis of numbers."""

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vfl.files import write_atomically
from vfl.sweep.results.table import Table

MARKERS = "osD^vP*X"
LOGARITHMIC_FROM = 100.0
"""Where the highest number on the axis is so many times the lowest, its decades are spaced evenly."""

Points = list[tuple[float, float]]
"""From left to right; a cell that has no value is NaN, so that no line is drawn across it."""


def curves_of(table: Table) -> dict[str, dict[str, Points]]:
    """Return the points by panel (the other axes of the rows) and column; a column without a value has none."""
    assert table.along is not None
    panels: dict[str, dict[str, Points]] = {}
    for line in table.lines:
        place = float(line.values[table.along])
        panel = panels.setdefault(", ".join(value for axis, value in line.values.items() if axis != table.along), {})
        for column, entry in zip(table.columns, line.entries, strict=True):
            if entry.state != "skipped":  # nothing is missing there
                panel.setdefault(column, []).append((place, math.nan if entry.value is None else entry.value))
    return {
        title: {column: sorted(points) for column, points in curves.items() if not _empty(points)}
        for title, curves in panels.items()
    }


def levels_of(table: Table) -> dict[str, float]:
    """Return the columns with one value for all lines: their other cells were left out, as they would be the same."""
    found = {}
    for at, column in enumerate(table.columns):
        planned = [line.entries[at] for line in table.lines if line.entries[at].state != "skipped"]
        if len(planned) == 1 < len(table.lines) and planned[0].value is not None:
            found[column] = planned[0].value
    return found


def save_curves(path: Path, name: str, table: Table) -> None:
    """Write a PNG file, a panel for each choice of the other axes of the rows; a table without `along` has none."""
    if table.along is None or not table.lines:
        return
    panels, levels = curves_of(table), levels_of(table)
    figure = Figure(figsize=(1.5 + 4.4 * len(panels), 4.2), dpi=150, layout="constrained")
    sides = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (title, curves) in zip(sides, panels.items(), strict=True):
        _draw(axes, table, {column: points for column, points in curves.items() if column not in levels}, levels)
        axes.set_title(title)
    _stretch(sides[0], [float(line.values[table.along]) for line in table.lines])
    sides[0].set_ylabel(table.number.title)
    shown = {label: handle for axes in sides for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if shown:
        labels = [label for label in dict.fromkeys((*table.columns, *shown)) if label in shown]
        figure.legend([shown[label] for label in labels], labels, loc="outside right center", frameon=False)
    figure.suptitle(name, x=0.01, ha="left")
    canvas = FigureCanvasAgg(figure)
    write_atomically(path, lambda target: canvas.print_figure(target, format="png"))


def _empty(points: Points) -> bool:
    return all(math.isnan(value) for _, value in points)


def _draw(axes: Axes, table: Table, curves: dict[str, Points], levels: dict[str, float]) -> None:
    for column, points in curves.items():
        number = table.columns.index(column)  # of one colour and form in all panels
        places, values = zip(*points, strict=True)
        axes.plot(places, values, marker=MARKERS[number % len(MARKERS)], color=f"C{number}", label=column)
    for column, value in levels.items():
        axes.axhline(value, color=f"C{table.columns.index(column)}", linestyle="--", label=column)
    if table.baseline is not None:
        axes.axhline(table.baseline, color="0.5", linestyle=":", label="guessing the mean image")
    axes.set_xlabel(table.along or "")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _stretch(axes: Axes, places: list[float]) -> None:
    """Let the panels, which share it, have the whole axis, also where nothing was run yet."""
    low, high = min(places), max(places)
    if low > 0 and high > LOGARITHMIC_FROM * low:
        axes.set_xscale("log")
        margin = (high / low) ** 0.05
        axes.set_xlim(low / margin, high * margin)
    elif high > low:
        margin = (high - low) / 20
        axes.set_xlim(low - margin, high + margin)
