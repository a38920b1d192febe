"""The page of a sweep: attackers by defences in colours, and every cell with its own report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm, Normalize

from vfl.folder.schema import numbers_in
from vfl.folder.summary import Summary
from vfl.folder.sweep_results import CellRow, Pivot, Place, SweepResults, load_results
from vfl.report.figures import is_bright
from vfl.report.page import render

LOGARITHMIC_FROM = 1000.0


@dataclass(frozen=True)
class Entry:
    """A place of the heat map: its text, its colours, and the report of its cell if there is one."""

    text: str
    background: str = ""
    ink: str = ""
    link: str = ""
    state: str = "done"


def sweep_page(folder: Path) -> str:
    """Return the report of a sweep's folder."""
    results = load_results(folder)
    pivot = results.pivot
    rows = {row.cell: row for row in results.rows}
    norm = _norm(pivot)
    lines = [
        (line.name, [_entry(entry, rows, norm, folder) for entry in line.entries], line.price) for line in pivot.lines
    ]
    return render(
        "sweep.html",
        results=results,
        pivot=pivot,
        lines=lines,
        scale=_scale(norm),
        cells=[(row, row.number(pivot.number), _link(folder, row)) for row in results.rows],
        verdict=_verdict(results),
    )


def unreported(folder: Path) -> list[Path]:
    """Return the cells' folders that have a result but no report."""
    found = [folder / row.folder for row in load_results(folder).rows]
    return [cell for cell in found if (cell / "summary.json").exists() and not (cell / "report.html").exists()]


def _entry(entry: Place, rows: dict[str, CellRow], norm: Normalize, folder: Path) -> Entry:
    there = [rows[name] for name in entry.cells if name in rows]
    link = _link(folder, there[0]) if len(there) == 1 else ""
    if entry.value is None:
        return Entry(entry.text, link=link, state=entry.state)
    colour = colormaps["viridis"](float(norm(entry.value)))
    return Entry(entry.text, _hex(colour), "#000" if is_bright(colour) else "#fff", link)


def _link(folder: Path, row: CellRow) -> str:
    path = f"{row.folder}/report.html"
    return quote(path) if (folder / path).exists() else ""


def _norm(pivot: Pivot) -> Normalize:
    """Return the scale of the colours: the number's own limits, or from the lowest to the highest value."""
    values = [entry.value for line in pivot.lines for entry in line.entries if entry.value is not None]
    if pivot.limits:
        return Normalize(*pivot.limits)
    if values and 0 < min(values) * LOGARITHMIC_FROM < max(values):
        return LogNorm(min(values), max(values))
    values += [pivot.baseline] if pivot.baseline is not None else []
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    return Normalize(low, high if high > low else low + 1.0)


def _scale(norm: Normalize) -> tuple[str, str, str]:
    """Return the colours from the lowest to the highest value as a CSS gradient, and the two values."""
    stops = ", ".join(_hex(colormaps["viridis"](float(place))) for place in np.linspace(0, 1, 9))
    return f"linear-gradient(90deg, {stops})", f"{norm.vmin:.4g}", f"{norm.vmax:.4g}"


def _verdict(results: SweepResults) -> str:
    """Say in one sentence what came of it: how much the best attacker gets where, beside a guess."""
    pivot = results.pivot
    number = next((one for one in numbers_in(Summary) if one.key == pivot.number), None)
    best = [(line.best.value, line.name, line.best.column) for line in pivot.lines if line.best]
    done = f"{results.done} of {results.planned} runs are done"
    if number is None or not pivot.number.startswith("attack."):
        return done + "."
    if results.done and not best:
        return (
            f"{done}, none of them with {number.label}: name another number as table.value, as attack.gain for tables."
        )
    if len(best) < 2:
        return done + "."
    most, least = (max(best), min(best)) if number.highest_is_best else (min(best), max(best))
    much, little = (f"{number.text(one[0])} {number.unit}".rstrip() for one in (most, least))
    what = "" if number.key.startswith("attack.psnr") else f" ({number.label})"
    guess = "" if pivot.baseline is None else f" Guessing the mean image gets {pivot.baseline_text}."
    tried = f" Nothing is said of attacks other than {', '.join(map(str, pivot.columns))}."
    if much == little:
        return f"{done}. The best of the attacks gets {much}{what} whatever the {pivot.row_axis}.{guess}{tried}"
    return (
        f"{done}. Most leaks with {pivot.row_axis} {most[1]}, where {most[2]} gets {much}{what}; least with "
        f"{least[1]}, where the best attack, {least[2]}, gets {little}.{guess}{tried}"
    )


def _hex(colour: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour[:3])
