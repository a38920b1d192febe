"""What was recovered of a table: rows beside the real ones, and how much of each column."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vfl.files import read_plain
from vfl.folder.summary import ColumnScore
from vfl.limits import JSON_BYTES
from vfl.maths.metrics import r2
from vfl.report.folder import RunFolder

SHOWN = 8
"""How many rows are shown."""

MOST_COLUMNS = 12
NO_ROWS = (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError)
"""What comes of a rows.json that is not there (no referee, columns without names), or that is none."""


@dataclass(frozen=True)
class Row:
    """A row as it is, if that is known, and as it was recovered; each recovered value with whether it is right."""

    name: str
    real: tuple[str, ...]
    rebuilt: tuple[tuple[str, bool], ...]


@dataclass(frozen=True)
class Rows:
    """The first rows, the names of the columns shown, and how many columns there are."""

    names: tuple[str, ...]
    rows: tuple[Row, ...]
    columns: int
    in_units: bool
    """Whether the values are in the columns' own units, and not scaled to mean 0 and deviation 1."""


def rows_beside(run: RunFolder) -> Rows | None:
    """Return the first rows beside the real ones: in their own units where the referee wrote them down."""
    if run.kind != "table" or run.x is None:
        return None
    try:
        written = json.loads(read_plain(run.path / "rows.json", JSON_BYTES))
        return _rows(written["ids"], written["real"], written["recovered"], names=written["columns"], in_units=True)
    except NO_ROWS:
        names = [f"column {number}" for number in range(run.x.shape[1])]
        real = run.truth[:SHOWN].tolist() if run.truth is not None else [[] for _ in run.x[:SHOWN]]
        ids = list(map(str, range(len(run.x[:SHOWN]))))
        return _rows(ids, real, run.x[:SHOWN].tolist(), names=names, in_units=False)


def column_scores(run: RunFolder) -> list[ColumnScore]:
    """Return each column's score as the referee wrote it down, or else R2 of each feature."""
    if run.summary.attack.columns:
        return run.summary.attack.columns
    if run.kind != "table" or run.x is None or run.truth is None:
        return []
    scores = r2(torch.tensor(np.nan_to_num(run.x)), torch.tensor(run.truth)).tolist()
    return [ColumnScore(name=f"column {number}", r2=score) for number, score in enumerate(scores)]


def _rows(ids: list[Any], real: list[Any], recovered: list[Any], *, names: list[Any], in_units: bool) -> Rows:
    rows = []
    for name, own, found in list(zip(ids, real, recovered, strict=True))[:SHOWN]:
        is_so = tuple(map(_words, own[:MOST_COLUMNS]))
        rebuilt = tuple(map(_words, found[:MOST_COLUMNS]))
        right = [not is_so or value == is_so[place] for place, value in enumerate(rebuilt)]
        rows.append(Row(str(name), is_so, tuple(zip(rebuilt, right, strict=True))))
    return Rows(tuple(map(str, names[:MOST_COLUMNS])), tuple(rows), len(names), in_units)


def _words(value: Any) -> str:
    """Write a value to four digits; what is not known is a dash."""
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
