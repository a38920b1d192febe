"""A table's recovery column by column and in its own units: what the referee knows and the coordinator does not."""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from vfl.datasets import Data
from vfl.datasets.columns import SHOWN, Column
from vfl.files import write_text
from vfl.folder.scores import ColumnScore, PartyScore, Right
from vfl.maths.metrics import EXACT, NEAR, best_guess, exact_rows, r2, within
from vfl.partition import Box

SURE = 4.0
"""A gain of so many standard errors is no chance, not even that of one among many columns."""

MARGIN = 0.01
"""A smaller gain is no more than a guess, however many rows there are."""

BY_CHANCE = 0.05
"""Fewer exact rows than this are to be expected of guessing: one that is exact is then no chance."""


def score_columns(data: Data, boxes: Sequence[Box], x: Tensor) -> list[ColumnScore]:
    """Return for each column who holds it, if not all do, and what was recovered of it beside a guess.

    What was not recovered is NaN in x: neither right nor wrong, and the mean where R2 needs a number.
    """
    scores = []
    for column, first, real in _parts(data, data.x):
        found = x[:, first : first + column.width]
        worker = next((number for number, box in enumerate(boxes) if box.start[0] <= first < box.stop[0]), None)
        about: dict[str, Any] = {"name": column.name, "worker": worker, "kind": column.kind}
        known = found.isfinite().all(1)
        if column.kind == "category":
            names = real.argmax(1)
            known &= found.amax(1) > found.amin(1) if column.width > 1 else True  # none stands out: it is unknown
            exact = beside_guess(found.argmax(1) == names, names == names.mode().values, known)
            scores.append(ColumnScore(**about, accuracy=exact.right, exact=exact))
        else:
            there = real[:, 1] < 0.5 if column.indicator else torch.ones(len(real), dtype=torch.bool)
            own, value = found[there, :1], real[there, :1]
            shares = [share_within(own, value, tolerance) for tolerance in (EXACT, NEAR)]
            variance = float(r2(own.nan_to_num(0.0), value)[0])
            scores.append(ColumnScore(**about, r2=variance, exact=shares[0], near=shares[1]))
    return scores


def score_rows(x: Tensor, truth: Tensor, columns: Sequence[ColumnScore]) -> Right:
    """Return how many rows are exact, beside the most frequent row."""
    exact = exact_rows(x, truth)
    _, row, count = truth.unique(dim=0, return_inverse=True, return_counts=True)
    found = beside_guess(exact, row == count.argmax(), x.isfinite().all(1))
    expected = len(truth) * math.prod(column.exact.guess or 0.0 for column in columns)
    return found.model_copy(update={"leaked": found.leaked or bool(exact.any() and expected < BY_CHANCE)})


def score_parties(columns: Sequence[ColumnScore], boxes: Sequence[Box], x: Tensor, truth: Tensor) -> list[PartyScore]:
    """Return for each worker the mean over its columns, and its whole rows, if they are divided among the workers."""
    held: dict[int, list[Right]] = {}
    for column in columns:
        if column.worker is not None:
            held.setdefault(column.worker, []).append(column.best)
    keys = ("right", "unknown", "guess", "gain")
    means = {w: {key: fmean(getattr(one, key) or 0.0 for one in own) for key in keys} for w, own in held.items()}
    leaked = {column.worker for column in columns if column.leaked}
    parts = {w: (boxes[w].cut(x), boxes[w].cut(truth), [one for one in columns if one.worker == w]) for w in means}
    return [
        PartyScore(worker=w, values=Right(**means[w], leaked=w in leaked), rows=score_rows(*parts[w]))
        for w in sorted(means)
    ]


def beside_guess(right: Tensor, guessed: Tensor, known: Tensor) -> Right:
    """Return the share that is right of what is known, beside that of the guess; the guess stands in for the rest."""
    if not len(right):
        return Right()
    right = right & known
    gained = torch.where(known, right.double() - guessed.double(), 0.0)
    gain, error = float(gained.mean()), float(gained.std(unbiased=False)) / math.sqrt(len(gained))
    shares = {"right": right, "unknown": ~known, "guess": guessed}
    return Right(
        **{name: float(share.double().mean()) for name, share in shares.items()},
        gain=gain,
        leaked=gain > max(MARGIN, SURE * error),
    )


def share_within(found: Tensor, real: Tensor, tolerance: float) -> Right:
    """Return how many numbers (rows, 1) are right to a share of their range, beside the best guess."""
    if not len(real):
        return Right()
    guess = best_guess(real, tolerance).expand_as(real)
    right, guessed = (within(values, real, tolerance)[:, 0] for values in (found, guess))
    return beside_guess(right, guessed, found.isfinite()[:, 0])


def write_rows(out: Path, data: Data, x: Tensor, labels: Tensor | None) -> None:
    """Write rows.csv, all recovered rows, and rows.json, the first of them and the real ones, in their own units."""
    header = [column.name for column in data.columns]
    recovered = _in_units(data, x)
    real = [column.as_read(part) for column, _, part in _parts(data, data.x[:SHOWN])]
    if labels is not None:
        header.append(data.label)
        recovered.append(_label_words(data, labels))
        real.append(data.target.as_read(data.y[:SHOWN, None]) if data.target else _label_words(data, data.y[:SHOWN]))
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
    for column in data.columns or [Column(f"column {number}") for number in range(x.shape[1])]:
        yield column, first, x[:, first : first + column.width]
        first += column.width


def _label_words(data: Data, labels: Tensor) -> list[float | str | None]:
    """Return labels as they are called, or in their own units."""
    if data.target is None:
        return [_class(data, label) for label in labels.tolist()]
    known, numbers = labels.isfinite(), data.target.decode(labels[:, None].nan_to_num(0.0))
    return [value if there else None for value, there in zip(numbers, known.tolist(), strict=True)]


def _class(data: Data, label: int) -> str | None:
    if label < 0:
        return None
    return data.class_names[label] if data.class_names else str(label)


def _plain(value: float | str | None) -> str:
    """Write a value for a person: a number with all the digits that it has, a whole one without a point."""
    return "" if value is None else value if isinstance(value, str) else repr(value).removesuffix(".0")
