"""What was recovered of a table: rows beside the real ones, and each column beside a guess."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vfl.files import read_plain
from vfl.folder.scores import ColumnScore, Right
from vfl.limits import JSON_BYTES
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


@dataclass(frozen=True)
class ColumnLine:
    """A column beside a guess, in words."""

    name: str
    worker: int | None
    leaked: bool
    texts: tuple[str, ...]


def column_lines(columns: Sequence[ColumnScore]) -> list[ColumnLine]:
    """Return what is known of each column beside a guess, those that leaked most first; none if all is unknown."""
    scored = [column for column in columns if column.exact.right is not None]
    order = sorted(scored, key=lambda one: (not one.leaked, -(one.best.gain or 0.0)))
    return [ColumnLine(str(one.name), one.worker, one.leaked, _beside(one)) for one in order]


def _beside(column: ColumnScore) -> tuple[str, ...]:
    exact, near = column.exact, column.near or Right()
    wrong = 1 - (exact.right or 0.0) - (exact.unknown or 0.0)
    shares = (exact.right, wrong, exact.unknown, exact.guess, exact.gain, near.right, near.guess, near.gain)
    texts = ["–" if share is None else f"{share:.1%}" for share in shares]
    return (*texts, "–" if column.r2 is None else f"{column.r2:.3f}")


def _rows(ids: list[Any], real: list[Any], recovered: list[Any], *, names: list[Any], in_units: bool) -> Rows:
    rows = []
    for name, own, found in list(zip(ids, real, recovered, strict=True))[:SHOWN]:
        is_so = tuple(map(value_words, own[:MOST_COLUMNS]))
        rebuilt = tuple(map(value_words, found[:MOST_COLUMNS]))
        right = [not is_so or value == is_so[place] for place, value in enumerate(rebuilt)]
        rows.append(Row(str(name), is_so, tuple(zip(rebuilt, right, strict=True))))
    return Rows(tuple(map(str, names[:MOST_COLUMNS])), tuple(rows), len(names), in_units)


def value_words(value: Any) -> str:
    """Write a value to four digits; what is not known is a dash."""
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
