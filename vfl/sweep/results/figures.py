"""The paper's figures from runs that are kept: images side by side, and training losses as curves."""

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from vfl.files import write_atomically
from vfl.files.archive import ArchiveError, read_archive
from vfl.folder.grid import as_image
from vfl.sweep.file import FigureConfig, read_sweep
from vfl.sweep.plan import Cell, Plan, load_plan
from vfl.sweep.results import NUMBERS
from vfl.sweep.results.kept import experiments, fitting, read_results, rows_of

IMAGES = 8
"""As many as the paper's Figure 1 has in a row."""
WIDTH = 110
"""Characters in a line below the images."""
SIZES = ("paper", "small")
"""What a figure is made of: the paper's size, as soon as one of its runs is there."""


def keep_images(sweep: Path, plan: Plan, rows: Mapping[str, Mapping[str, Any]], kept: Path) -> None:
    """Keep some images of those of a sweep's runs that a figure of the plan shows: real ones above recovered ones."""
    for cell in _shown(plan):
        folder = rows.get(cell.name, {}).get("folder")
        if folder is None:
            continue
        try:
            arrays = read_archive(sweep / folder / "recovered.npz")
        except (ArchiveError, OSError):
            continue
        if {"x", "x_true"} <= arrays.keys():
            some = np.linspace(0, len(arrays["x"]) - 1, min(IMAGES, len(arrays["x"]))).round().astype(int)
            pairs = [torch.tensor(arrays[name][some]).float() for name in ("x_true", "x")]
            picture = torch.cat([torch.cat(list(images), dim=2) for images in pairs], dim=1)
            path = _place(kept, plan, cell)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, partial(as_image(picture).save, format="PNG"))


def draw_figures(files: Path, kept: Path, docs: Path) -> list[Path]:
    """Draw those of which any run is kept; return the pictures."""
    return [path for figure, plans, path in _figures(files, docs) if _drawn(figure, plans, kept, path)]


def figure_lines(file: Path, docs: Path, page: Path) -> list[str]:
    """Return what the page says of an experiment's figures: a link to each, or that none of its runs was made."""
    lines = []
    for figure in _paper_figures(file):
        path = _picture(docs, figure)
        link = Path(os.path.relpath(path, page.parent)).as_posix()
        lines.append(f"![{figure.title}]({link})\n" if path.exists() else f"{figure.title}: not run.\n")
    return lines


def _figures(files: Path, docs: Path) -> Iterator[tuple[FigureConfig, list[Plan], Path]]:
    for file in experiments(files):
        sizes = read_sweep(file).sizes
        plans = [load_plan(file, size=size) for size in SIZES if size in sizes]
        for figure in _paper_figures(file):
            yield figure, plans, _picture(docs, figure)


def _drawn(figure: FigureConfig, plans: Sequence[Plan], kept: Path, path: Path) -> bool:
    for plan in plans:
        picture = _curves(figure, plan, kept) if figure.number else _images(figure, plan, kept)
        if picture is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, partial(FigureCanvasAgg(picture).print_figure, format="png"))
            return True
    return False


def _images(figure: FigureConfig, plan: Plan, kept: Path) -> Figure | None:
    """Return the real images above those of every run; None where none of them is kept."""
    cells = _cells(figure, plan)
    there = _fitting(plan, kept)
    strips = {cell.name: _place(kept, plan, cell) for cell in cells if cell.name in there}
    pictures = {name: np.asarray(Image.open(path)) for name, path in strips.items() if path.exists()}
    if not pictures:
        return None
    one = next(iter(pictures.values()))
    height = one.shape[0] // 2
    rows = [("Original", one[:height])]
    rows += [(cell.values[figure.rows], pictures[cell.name][height:]) for cell in cells if cell.name in pictures]
    absent = [cell for cell in cells if cell.name not in pictures]
    drawn = Figure(figsize=(1.6 + one.shape[1] / height, 0.5 + len(rows)), dpi=110, layout="constrained")
    for axes, (label, strip) in zip(drawn.subplots(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        _show(axes, label, strip)
    drawn.suptitle(f"{figure.title} ({plan.name})", x=0.01, ha="left", fontsize=9)
    drawn.supxlabel(_absent(absent, figure.rows, there), x=0.01, ha="left", fontsize=7, color="0.4")
    return drawn


def _absent(cells: Sequence[Cell], axis: str, there: Mapping[str, Any]) -> str:
    """Say which runs of a figure have no images, and why."""
    without = {"Not run": [c for c in cells if c.name not in there], "No images": [c for c in cells if c.name in there]}
    said = [f"{why}: {'; '.join(cell.values[axis] for cell in some)}." for why, some in without.items() if some]
    return textwrap.fill(" ".join(said), WIDTH)


def _show(axes: Axes, label: str, strip: Any) -> None:
    axes.imshow(strip, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def _curves(figure: FigureConfig, plan: Plan, kept: Path) -> Figure | None:
    """Return a panel for each value of one axis, a line for each of another; None where no curve is kept."""
    assert figure.number is not None
    assert figure.panels is not None
    file = kept / f"{plan.name}.json"
    rows = rows_of(plan, read_results(file)) if file.exists() else {}
    panels: dict[str, list[tuple[str, list[tuple[int, float]]]]] = {}
    for cell in _cells(figure, plan):
        curve = rows[cell.name].curves.get(figure.number, []) if cell.name in rows else []
        if curve:
            panels.setdefault(cell.values[figure.panels], []).append((cell.values[figure.rows], curve))
    if not panels:
        return None
    drawn = Figure(figsize=(max(6.8, 1.5 + 3.6 * len(panels)), 3.2), dpi=110, layout="constrained")
    for axes, (title, lines) in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for name in dict.fromkeys(name for name, _ in lines):
            several = [curve for other, curve in lines if other == name]
            axes.plot(*zip(*several[0], strict=True), label=name)
        axes.set_title(title)
        axes.set_xlabel("round")
        axes.set_ylabel(NUMBERS[figure.number].label)
        axes.legend(frameon=False)
    drawn.suptitle(f"{figure.title} ({plan.name})", x=0.01, ha="left", fontsize=9)
    return drawn


def _shown(plan: Plan) -> list[Cell]:
    figures = plan.paper.figures if plan.paper else ()
    named = {cell.name: cell for figure in figures if not figure.number for cell in _cells(figure, plan)}
    return list(named.values())


def _cells(figure: FigureConfig, plan: Plan) -> list[Cell]:
    """Return the runs of a figure; where a size has not the value that is asked for, those of its first one."""
    where = {axis: value if value in plan.axes[axis] else plan.axes[axis][0] for axis, value in figure.where.items()}
    where |= {"seed": plan.axes["seed"][0]} if "seed" in plan.axes else {}
    return [cell for cell in plan.cells if where.items() <= cell.values.items()]


def _fitting(plan: Plan, kept: Path) -> dict[str, Any]:
    file = kept / f"{plan.name}.json"
    return fitting(plan, read_results(file)) if file.exists() else {}


def _place(kept: Path, plan: Plan, cell: Cell) -> Path:
    return kept / "images" / plan.name / f"{cell.folder}.png"


def _picture(docs: Path, figure: FigureConfig) -> Path:
    return docs / "images" / f"{figure.name}.png"


def _paper_figures(file: Path) -> tuple[FigureConfig, ...]:
    paper = read_sweep(file).paper
    return paper.figures if paper else ()
