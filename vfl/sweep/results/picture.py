"""The table as a heat map."""

import logging
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
    canvas = FigureCanvasAgg(figure)
    write_atomically(path, lambda target: canvas.print_figure(target, format="png"))


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
    axes.text(*at, entry.text, ha="center", va="center", color="black" if is_bright(colour) else "white")


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
