"""The table as curves: the value along an axis of numbers."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sweep.table import Line, Table
from vfl.results import write_atomically

MARKERS = "osD^vP*X"
LOGARITHMIC_FROM = 100.0
"""Where the highest number on the axis is so many times the lowest, its decades are spaced evenly."""


def save_curves(path: Path, name: str, table: Table) -> None:
    """Write a PNG file, a panel for each choice of the other axes of the rows; a table without `along` has none."""
    if table.along is None:
        return
    panels: dict[str, list[Line]] = {}
    for line in table.lines:
        others = [value for axis, value in line.values.items() if axis != table.along]
        panels.setdefault(", ".join(others), []).append(line)
    if not panels:
        return
    figure = Figure(figsize=(1.5 + 4.4 * len(panels), 4.2), dpi=150, layout="constrained")
    for number, (axes, (title, lines)) in enumerate(
        zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True)
    ):
        _draw(axes, table, table.along, lines)
        axes.set_title(title)
        if not number:
            axes.set_ylabel(table.number.title)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.suptitle(name, x=0.01, ha="left")
    canvas = FigureCanvasAgg(figure)
    write_atomically(path, lambda target: canvas.print_figure(target, format="png"))


def _draw(axes: Axes, table: Table, along: str, lines: list[Line]) -> None:
    places = [float(line.values[along]) for line in lines]
    for number, column in enumerate(table.columns):
        values = [line.entries[number].value for line in lines]
        known = sorted((place, value) for place, value in zip(places, values, strict=True) if value is not None)
        axes.plot(
            [place for place, _ in known],
            [value for _, value in known],
            marker=MARKERS[number % len(MARKERS)],
            color=f"C{number}",
            label=column,
        )
    if min(places) > 0 and max(places) > LOGARITHMIC_FROM * min(places):
        axes.set_xscale("log")
    if table.baseline is not None:
        axes.axhline(table.baseline, color="0.5", linestyle=":", label="guessing the mean image")
    axes.set_xlabel(along)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
