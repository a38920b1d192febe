"""From a sweep's file to its cells: every one a whole config, checked before the first of them runs."""

import hashlib
import itertools
import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vfl.config import RunConfig, apply_change, read_tree
from vfl.errors import UserError
from vfl.registry import explain
from vfl.shipped import find_shipped
from vfl.sweep.file import Changes, PaperConfig, SweepConfig, TableConfig, changed, read_sweep

DEFAULT_SIZE = "small"


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: its place on the axes (nowhere for a single cell), its config, its folder's name."""

    name: str
    values: dict[str, str]
    config: RunConfig
    folder: str


@dataclass(frozen=True)
class Plan:
    """All cells of a sweep, and how its table is laid out."""

    name: str
    axes: dict[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
    table: TableConfig
    paper: PaperConfig | None = None
    note: str = ""
    rounds: tuple[int, ...] = ()
    """After which rounds the page shows the numbers of each run."""


def cell_folder(out: Path, cell: Cell) -> Path:
    """Return where a cell's run is."""
    return out / "cells" / cell.folder


class Problems:
    """What is wrong with a sweep, each sentence once with the cells that it is about."""

    def __init__(self) -> None:
        self._found: dict[str, list[str]] = {}

    def add(self, sentence: str, cell: str | None = None) -> None:
        """Note a problem."""
        self._found.setdefault(sentence, []).extend([cell] if cell else [])

    def raise_if_any(self, path: Path, cells: int) -> None:
        """End with all problems at once."""
        if self._found:
            raise UserError(f"{path}: " + "; ".join(s + _where(names, cells) for s, names in self._found.items()))


def load_plan(path: Path, changes: list[str] | None = None, size: str | None = None) -> Plan:
    """Read a sweep's file in one of its sizes, apply `a.b=c` changes to its base, and lay out the cells."""
    sweep = read_sweep(path)
    size = _which_size(path, sweep, size)
    folder = find_shipped(path).parent
    base = sweep.base if isinstance(sweep.base, dict) else read_tree(folder / sweep.base, "config", "configs/")
    problems = Problems()
    _check_names(sweep, problems)
    if size is not None:
        chosen = sweep.sizes[size]
        base = changed(base, chosen.base)
        own = {"skip": chosen.skip, "only": chosen.only, "adjust": chosen.adjust}
        axes, both = sweep.axes | chosen.axes, {key: getattr(sweep, key) + more for key, more in own.items()}
        _check_names(sweep.model_copy(update={"axes": axes, **own}), problems, f"sizes.{size}.")
        sweep = sweep.model_copy(update={"axes": axes, **both})
    for change in changes or []:
        apply_change(base, change)
    drafts = _drafts(sweep)
    if not drafts:
        problems.add("skip and only leave no cell" if sweep.axes else "axes: give at least one axis, or cells")
    problems.raise_if_any(path, len(drafts))
    cells = [_cell(base, draft, problems) for draft in drafts]
    problems.raise_if_any(path, len(drafts))
    laid_out = {axis: tuple(values) for axis, values in sweep.axes.items()}
    name = f"{path.stem}-{size}" if size else path.stem
    note = sweep.sizes[size].note if size else ""
    rounds = sweep.sizes[size].rounds if size else ()
    whole = _unique_folders([cell for cell in cells if cell])
    return Plan(name, laid_out, whole, sweep.table, sweep.paper, note, rounds)


def chosen_cells(plan: Plan, where: list[str]) -> tuple[Cell, ...]:
    """Return the cells that have, on every axis that an `axis=value` names, the value or one of several."""
    wanted: dict[str, tuple[str, ...]] = {}
    for one in where:
        axis, _, value = (part.strip() for part in one.partition("="))
        if axis not in plan.axes:
            raise UserError(f"--where {one}: give AXIS=VALUE with one of the axes {', '.join(plan.axes) or '(none)'}")
        if value not in plan.axes[axis]:
            known = " | ".join(plan.axes[axis])
            raise UserError(f"--where {one}: {axis} has no value {value!r}, choose one of {known}")
        wanted[axis] = (*wanted.get(axis, ()), value)
    cells = tuple(cell for cell in plan.cells if _fits(cell.values, wanted))
    if not cells:
        raise UserError(f"--where {' '.join(where)}: no cell of the sweep has these values together")
    return cells


def _which_size(path: Path, sweep: SweepConfig, size: str | None) -> str | None:
    """Return the size that is asked for; a file that has sizes is run in its `small` one, or its first."""
    known = ", ".join(sweep.sizes)
    if size is not None and size not in sweep.sizes:
        raise UserError(f"--size {size}: {path} has " + (f"the sizes {known}" if known else "no sizes"))
    if size is None and sweep.sizes:
        return DEFAULT_SIZE if DEFAULT_SIZE in sweep.sizes else next(iter(sweep.sizes))
    return size


@dataclass(frozen=True)
class _Draft:
    """A cell before its config is checked."""

    name: str
    values: dict[str, str]
    changes: tuple[Changes, ...]


def _drafts(sweep: SweepConfig) -> list[_Draft]:
    drafts = []
    for choice in itertools.product(*sweep.axes.values()) if sweep.axes else ():
        values = dict(zip(sweep.axes, choice, strict=True))
        if not _left_out(values, sweep):
            changes = tuple(sweep.axes[axis][value] for axis, value in values.items())
            changes += tuple(one.change for one in sweep.adjust if _fits(values, one.where))
            drafts.append(_Draft(", ".join(choice), values, changes))
    return drafts + [_Draft(name, {}, (changes,)) for name, changes in sweep.cells.items()]


def _left_out(values: dict[str, str], sweep: SweepConfig) -> bool:
    """Return whether `skip` names a cell, or `only` keeps one of its values for other cells."""
    if any(_fits(values, one) for one in sweep.skip):
        return True
    about = [one for one in sweep.only if _fits(values, dict([next(iter(one.items()))]))]
    return bool(about) and not any(_fits(values, one) for one in about)


def _fits(values: dict[str, str], one: dict[str, tuple[str, ...]]) -> bool:
    return all(values.get(axis) in named for axis, named in one.items())


def _check_names(sweep: SweepConfig, problems: Problems, within: str = "") -> None:
    for axis, values in sweep.axes.items():
        if not values:
            problems.add(f"axes.{axis}: has no values")
    entries = [(f"{within}skip.{number}", one) for number, one in enumerate(sweep.skip)]
    entries += [(f"{within}only.{number}", one) for number, one in enumerate(sweep.only)]
    entries += [(f"{within}adjust.{number}.where", one.where) for number, one in enumerate(sweep.adjust)]
    for where, one in entries:
        if not one:
            problems.add(f"{where}: names no axis")
        for axis, named in one.items():
            if axis not in sweep.axes:
                problems.add(_no_axis(where, axis, sweep))
            for value in named if axis in sweep.axes else ():
                if value not in sweep.axes[axis]:
                    known = ", ".join(sweep.axes[axis])
                    problems.add(f"{where}.{axis}: there is no value called {value!r}, choose one of {known}")
    for side in ("rows", "columns"):
        for axis in getattr(sweep.table, side) or ():
            if axis not in sweep.axes:
                problems.add(_no_axis(f"table.{side}", axis, sweep))
    for axis in set(sweep.table.rows or ()) & set(sweep.table.columns or ()):
        problems.add(f"table: {axis} cannot be both in rows and in columns")
    _check_along(sweep, problems)
    for name in {", ".join(choice) for choice in itertools.product(*sweep.axes.values())} & set(sweep.cells):
        problems.add(f"cells: {name!r} is the name of a cell of the grid, choose another")


def _check_along(sweep: SweepConfig, problems: Problems) -> None:
    along = sweep.table.along
    if along is None:
        return
    if along not in (sweep.table.rows or ()):
        problems.add(f"table.along: {along!r} is not among table.rows, which must name the axis to draw curves along")
    for value in sweep.axes.get(along, ()):
        if not _is_number(value):
            problems.add(f"table.along: the value {value!r} of {along} is no number, so no curve can be drawn along it")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _no_axis(where: str, axis: str, sweep: SweepConfig) -> str:
    known = f"choose one of {', '.join(sweep.axes)}" if sweep.axes else "the sweep has none"
    return f"{where}: there is no axis called {axis!r}, {known}"


def _cell(base: dict[str, Any], draft: _Draft, problems: Problems) -> Cell | None:
    tree = base
    try:
        for changes in draft.changes:
            tree = changed(tree, changes)
        return Cell(draft.name, draft.values, RunConfig.model_validate(tree), _slug(draft))
    except ValidationError as error:  # a ValueError too, so first
        problems.add(explain(error), draft.name)
    except ValueError as error:
        problems.add(str(error), draft.name)
    return None


def _slug(draft: _Draft) -> str:
    """Return a folder's name that any file system and shell accepts."""
    parts = [re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-.") for part in draft.values.values() or (draft.name,)]
    return "_".join(part or "x" for part in parts)[:100]


def _unique_folders(cells: list[Cell]) -> tuple[Cell, ...]:
    """Make folders' names unique where two cells would have the same one (`a < b`, `a > b`)."""
    count = Counter(cell.folder.lower() for cell in cells)
    return tuple(
        replace(cell, folder=f"{cell.folder}-{hashlib.sha256(cell.name.encode()).hexdigest()[:6]}")
        if count[cell.folder.lower()] > 1
        else cell
        for cell in cells
    )


def _where(names: list[str], cells: int) -> str:
    if not names:
        return ""
    if len(names) == cells > 1:
        return " (in every cell)"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f" (cell {'; '.join(names[:3])}{more})" if len(names) == 1 else f" (cells {' | '.join(names[:3])}{more})"
