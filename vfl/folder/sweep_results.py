"""A sweep's `results.json`: its one schema, written by `cafe sweep` and read by `cafe report`."""

import json
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from vfl.errors import UserError
from vfl.files import read_plain, write_text
from vfl.folder.schema import Count, Finite, Part, Some, Word, as_json, checked
from vfl.limits import JSON_BYTES, plain

RESULTS = "results.json"
NEEDED = {"sweep", "rows", "pivot", "planned", "versions"}


class Place(Part):
    """A place of a sweep's table: the mean over its cells that are done."""

    state: str
    """done, failed, not run or skipped."""
    value: Finite | None
    cells: Some[str]
    """The names of its cells, run or not."""
    text: str
    """The value, with its interval and the number of runs if they are several seeds, or why there is none."""
    half: Finite | None = None
    """Half of the 95 % interval of the mean over seeds."""
    runs: Count | None = None
    """Over how many seeds."""


class Best(Part):
    """The best value of a line, and the column that it is in."""

    value: Finite
    column: str


class PivotLine(Part):
    """A line of a sweep's table."""

    name: str
    entries: Some[Place]
    best: Best | None
    price: Some[Word]
    """What training costs there, in words."""


class Pivot(Part):
    """A sweep's table: one number over the axes."""

    number: str
    """Its key, as in `attack.psnr_mean`."""
    title: Word
    limits: tuple[Finite, Finite] | None
    row_axis: Word
    column_axis: Word
    columns: Some[Word]
    lines: Some[PivotLine]
    price_titles: Some[Word]
    note: Word
    baseline: Finite | None
    baseline_text: Word

    @model_validator(mode="after")
    def _has_limits(self) -> Self:
        if self.limits is not None and not self.limits[0] < self.limits[1]:
            raise ValueError("the first of its limits is not below the second")
        return self


class CellRow(Part):
    """A run of a sweep; its numbers are beside these keys."""

    cell: str
    ended: Word
    error: Word
    folder: str

    def number(self, key: str) -> Any:
        """Return one of its numbers."""
        return (self.model_extra or {}).get(key, "nothing")


class SweepResults(Part):
    """A sweep's results: what made them, the cells that have run, and the table."""

    sweep: Word
    versions: dict[str, Word]
    planned: Word
    rows: Some[CellRow]
    pivot: Pivot

    @property
    def done(self) -> int:
        """Return how many cells came to their end."""
        return sum(row.ended == "complete" for row in self.rows)

    @model_validator(mode="after")
    def _has_numbers(self) -> Self:
        for row in self.rows:
            value = row.number(self.pivot.number)
            if not isinstance(value, int | float | None):
                raise ValueError(f"the cell {row.cell} has {value!r} for {self.pivot.number}")
        return self


def save_results(out: Path, results: SweepResults) -> None:
    """Write a sweep's results."""
    write_text(out / RESULTS, json.dumps(as_json(results), indent=1, allow_nan=False) + "\n")


def load_results(folder: Path) -> SweepResults:
    """Read a sweep's results, which may come from another user; its cells must be below its own folder."""
    try:
        found = json.loads(read_plain(folder / RESULTS, JSON_BYTES))
        if not found.keys() >= NEEDED:
            raise ValueError("it was written by an older version; `cafe sweep` with the same folder writes it anew")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{folder} is not a sweep's folder: {RESULTS} cannot be read ({error})") from None
    results = checked(SweepResults, found, folder / RESULTS)
    for row in results.rows:
        if not _is_below(folder, row.folder):
            raise UserError(f"{folder / RESULTS}: a cell is in {plain(row.folder)}, which is not in the sweep's folder")
    return results


def _is_below(folder: Path, cell: str) -> bool:
    try:
        return not Path(cell).is_absolute() and (folder / cell).resolve().is_relative_to(folder.resolve() / "cells")
    except (OSError, RuntimeError, ValueError):  # links in a circle, and names that no file has
        return False
