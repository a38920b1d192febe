"""A table's recovery column by column and in its own units: what the referee knows and the coordinator does not."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vfl.datasets import Data
from vfl.datasets.columns import SHOWN, Column
from vfl.files import write_text
from vfl.folder.summary import ColumnScore
from vfl.maths.metrics import r2
from vfl.partition import Box


def score_columns(data: Data, boxes: Sequence[Box], x: Tensor) -> list[ColumnScore]:
    """Return for each column who holds it, if not all do, and R2 for numbers, the share of right categories for words.

    What was not recovered is NaN in x: the mean for a number, no category for a word.
    """
    scores = []
    for column, first, real in _parts(data, data.x):
        found = x[:, first : first + column.width]
        worker = next((number for number, box in enumerate(boxes) if box.start[0] <= first < box.stop[0]), None)
        about: dict[str, Any] = {"name": column.name, "worker": worker, "kind": column.kind}
        if column.kind == "category":
            right = (found.argmax(1) == real.argmax(1)) & found.isfinite().all(1)
            scores.append(ColumnScore(**about, accuracy=float(right.float().mean())))
        else:
            there = real[:, 1] < 0.5 if column.indicator else torch.ones(len(real), dtype=torch.bool)
            own = r2(found[there, :1].nan_to_num(0.0), real[there, :1])
            scores.append(ColumnScore(**about, r2=float(own[0])))
    return scores


def write_rows(out: Path, data: Data, x: Tensor, labels: Tensor | None) -> None:
    """Write rows.csv, all recovered rows, and rows.json, the first of them and the real ones, in their own units."""
    header = [column.name for column in data.columns]
    recovered = _in_units(data, x)
    real = [column.as_read(part) for column, _, part in _parts(data, data.x[:SHOWN])]
    if labels is not None:
        header.append(data.label)
        recovered.append([_class(data, label) for label in labels.tolist()])
        real.append([_class(data, label) for label in data.y[:SHOWN].tolist()])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", *header])
    writer.writerows(zip(data.ids, *([_plain(value) for value in own] for own in recovered), strict=True))
    write_text(out / "rows.csv", text.getvalue())
    shown = {
        "columns": header,
        "ids": list(data.ids[:SHOWN]),
        "real": [list(row) for row in zip(*real, strict=True)],
        "recovered": [list(row) for row in zip(*(own[:SHOWN] for own in recovered), strict=True)],
    }
    written = json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
    write_text(out / "rows.json", written)


def _in_units(data: Data, x: Tensor) -> list[list[float | str | None]]:
    """Return all columns in their own units, with None where nothing was recovered."""
    return [
        [value if known else None for value, known in zip(column.decode(part), _known(part), strict=True)]
        for column, _, part in _parts(data, x)
    ]


def _known(features: Tensor) -> list[bool]:
    known: list[bool] = features.isfinite().all(1).tolist()
    return known


def _parts(data: Data, x: Tensor) -> Iterator[tuple[Column, int, Tensor]]:
    """Give each column, the place of its first feature, and its features (rows, width)."""
    first = 0
    for column in data.columns:
        yield column, first, x[:, first : first + column.width]
        first += column.width


def _class(data: Data, label: int) -> str | None:
    if label < 0:
        return None
    return data.class_names[label] if data.class_names else str(label)


def _plain(value: float | str | None) -> str:
    """Write a value for a person: a number with all the digits that it has, a whole one without a point."""
    return "" if value is None else value if isinstance(value, str) else repr(value).removesuffix(".0")
