"""The table as pictures: a heat map, and curves along an axis of numbers."""

import logging
import math
import textwrap
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vfl.files import write_atomically
from vfl.folder.sweep_results import Place
from vfl.report.figures import is_bright
from vfl.sweep.results.table import Table

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it talks of its font cache otherwise

COLOURS = "viridis"
LOGARITHMIC_FROM = 1000.0
"""Where the highest value is so many times the lowest, a linear scale would show one colour."""

MARKERS = "osD^vP*X"
LOGARITHMIC_AXIS_FROM = 100.0
"""Where the highest number on the axis is so many times the lowest, its decades are spaced evenly."""

Points = list[tuple[float, float]]
"""From left to right; a cell that has no value is NaN, so that no line is drawn across it."""


def save_heatmap(path: Path, name: str, table: Table) -> None:
    """Write the heat map as a PNG file; a sweep without axes has none."""
    if not table.lines or not table.columns:
        return
    rows, columns = len(table.lines), len(table.columns)
    figure = Figure(figsize=(3.2 + 1.25 * columns, 1.9 + 0.55 * rows), dpi=150, layout="constrained")
    axes = figure.subplots()
    scale = ScalarMappable(_scale(table), COLOURS)
    for y, line in enumerate(table.lines):
        for x, entry in enumerate(line.entries):
            _paint(axes, (x, y), entry, scale)
    _label(axes, name, table)
    bar = figure.colorbar(scale, ax=axes, label=table.number.title, pad=0.02)
    if table.baseline is not None and scale.norm.vmin is not None:
        bar.ax.axhline(table.baseline, color="white", linewidth=2.5)
        bar.ax.axhline(table.baseline, color="crimson", linewidth=1.5)
        axes.annotate(
            f"red line: guessing the mean image, {table.number.text(table.baseline)} {table.number.unit}",
            (1.0, 0.0),
            xycoords="axes fraction",
            xytext=(0, -8),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8,
            color="crimson",
        )
    _save(figure, path)


def _scale(table: Table) -> Normalize:
    values = [entry.value for line in table.lines for entry in line.entries if entry.value is not None]
    if table.number.limits:
        return Normalize(*table.number.limits)
    if values and 0 < min(values) * LOGARITHMIC_FROM < max(values):
        return LogNorm(min(values), max(values))
    values += [table.baseline] if table.baseline is not None else []
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    margin = (high - low) / 20 or 0.5
    return Normalize(low - margin, high + margin)


def _paint(axes: Axes, at: tuple[int, int], entry: Place, scale: ScalarMappable) -> None:
    corner = (at[0] - 0.5, at[1] - 0.5)
    if entry.value is None:
        hatch = "////" if entry.state == "failed" else None
        face = {"failed": "0.85", "skipped": "white"}.get(entry.state, "0.92")
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=face, edgecolor="0.65", hatch=hatch, linewidth=0))
        boxed = {"facecolor": face, "edgecolor": "none", "pad": 2}
        axes.text(*at, entry.text, ha="center", va="center", color="0.3", fontsize=8, bbox=boxed)
        return
    colour = scale.to_rgba(np.array([entry.value]))[0]
    axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, linewidth=0))
    text = entry.text.replace(" ±", "\n±")  # an interval below its mean: a column is narrow
    axes.text(*at, text, ha="center", va="center", color="black" if is_bright(colour) else "white")


def _label(axes: Axes, name: str, table: Table) -> None:
    rows, columns = len(table.lines), len(table.columns)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_xticks(range(columns), [textwrap.fill(column, 14) for column in table.columns])
    axes.set_yticks(range(rows), [textwrap.fill(line.name, 26) for line in table.lines])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(table.column_axis, fontweight="bold")
    axes.set_ylabel(table.row_axis, fontweight="bold")
    axes.set_title(name, loc="left", pad=14)
    axes.tick_params(length=0)
    for place in range(1, max(rows, columns)):  # white lines between the cells
        if place < columns:
            axes.axvline(place - 0.5, color="white", linewidth=1.5)
        if place < rows:
            axes.axhline(place - 0.5, color="white", linewidth=1.5)
    axes.spines[:].set_visible(False)


def panels_of(table: Table) -> dict[str, dict[str, Points]]:
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
    panels, levels = panels_of(table), levels_of(table)
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
    _save(figure, path)


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
    if low > 0 and high > LOGARITHMIC_AXIS_FROM * low:
        axes.set_xscale("log")
        margin = (high / low) ** 0.05
        axes.set_xlim(low / margin, high * margin)
    elif high > low:
        margin = (high - low) / 20
        axes.set_xlim(low - margin, high + margin)


def _save(figure: Figure, path: Path) -> None:
    canvas = FigureCanvasAgg(figure)
    write_atomically(path, lambda target: canvas.print_figure(target, format="png"))
