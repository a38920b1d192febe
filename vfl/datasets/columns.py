"""A table's columns as features and back: numbers scaled, categories one-hot, fitted at the worker that holds them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vfl.errors import UserError

SHOWN = 20
"""How many first rows the report shows beside the recovered ones."""

LONGEST = 2**53
"""The largest number up to which a float64 holds every whole number exactly."""

MISSING = "(missing)"
"""The category of missing values, where the config allows them."""


@dataclass(frozen=True)
class Text:
    """A column of words: for each row the place of its word among `words`, -1 where it has none."""

    codes: np.ndarray
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: np.ndarray | slice) -> "Text":
        return Text(self.codes[rows], self.words)


LARGEST = float(np.finfo(np.float32).max)
"""What a feature can be at most."""

Values = np.ndarray | Text
"""A column as it was read: numbers with NaN where they are missing, or words."""


@dataclass(frozen=True)
class Column:
    """A column in its own units, and the features that a model sees of it."""

    name: str
    kind: Literal["number", "category"] = "number"
    mean: float = 0.0
    deviation: float = 1.0
    indicator: bool = False
    """Whether one feature says which values are missing: the second of a number, the last of a category."""
    categories: tuple[str, ...] = ()
    constant: bool = False
    """Whether the number is the same in every row; `deviation` is then 1, and says nothing of it."""
    first: tuple[float, ...] = ()
    """The first training rows' numbers as they were read: float32 features lose some of their digits."""
    date: bool = False
    """Whether the number counts days since 1970-01-01, and is written as a date."""

    @property
    def width(self) -> int:
        """Return how many features the column makes."""
        return len(self.categories) if self.kind == "category" else 1 + self.indicator

    @property
    def scales(self) -> list[tuple[float, float]]:
        """Return what is taken from each feature, and what it is then divided by."""
        return [
            (self.mean, self.deviation) if self.kind == "number" and not place else (0.0, 1.0)
            for place in range(self.width)
        ]

    def encode(self, values: Values) -> Tensor:
        """Return the features (rows, width); a category that no training row had is all zeros."""
        if isinstance(values, Text):
            words = self.categories[:-1] if self.indicator else self.categories
            place = {word: number for number, word in enumerate(words)}
            gone = len(words) if self.indicator else -1
            # A code of -1 picks the last entry.
            places = np.array([*(place.get(word, -1) for word in values.words), gone])[values.codes]
            return torch.from_numpy(places[:, None] == np.arange(self.width)).float()
        with np.errstate(over="ignore"):  # the error below instead of NumPy's warning
            scaled = torch.from_numpy((values - self.mean) / self.deviation)
        if bool((scaled.abs() > LARGEST).any()):
            raise UserError(
                f"data: column {self.name!r} has the value {values[scaled.abs().nan_to_num(0.0).argmax()]:g}, which is "
                f"so far from the training rows' mean, {self.mean:g}, that no feature holds it; correct it or leave "
                f"the row out"
            )
        if not self.indicator:
            return scaled.float()[:, None]
        missing = scaled.isnan()
        return torch.stack([scaled.nan_to_num(0.0), missing.double()], dim=1).float()

    def decode(self, features: Tensor) -> list[float | str | None]:
        """Return values in the column's own units from features (rows, width); None where the number is missing."""
        if self.kind == "category":
            return [self.categories[number] for number in features.argmax(1).tolist()]
        gone = (features[:, 1] > 0.5).tolist() if self.indicator else [False] * len(features)
        # Features are float32: digits below a hundred-thousandth of the deviation are rounding errors.
        digits = 5 - math.floor(math.log10(self.deviation))
        beyond, within = (self.mean, 0.0) if self.constant else (0.0, self.mean)
        numbers = (features[:, 0].double() * self.deviation + within).tolist()
        written = [round(number, digits) + beyond + 0.0 for number in numbers]
        values = map(_day, written) if self.date else written
        return [None if lost else value for value, lost in zip(values, gone, strict=True)]

    def as_read(self, features: Tensor) -> list[float | str | None]:
        """Decode the first training rows' own features, with the numbers' digits as they were read."""
        values = self.decode(features)
        for row, (found, read) in enumerate(zip(values, self.first, strict=False)):
            if isinstance(found, float) and abs(found - read) <= 1e-4 * self.deviation:  # else it is another row's
                values[row] = read
        return values


def _day(number: float) -> str:
    """Write days since 1970-01-01 as a date; an attack may come to one that no calendar has."""
    return str(np.datetime64(round(max(-1e15, min(1e15, number))), "D"))


def fit_column(name: str, values: Values, most_categories: int, gaps: bool = False) -> Column:
    """Learn a column's scale or categories from the training rows; `gaps`: other rows have missing values."""
    gaps = gaps or bool(missing_in(values).any())
    if isinstance(values, Text):
        found = sorted(values.words[code] for code in np.unique(values.codes) if code >= 0)
        if len(found) > most_categories:
            raise UserError(
                f"data: column {name!r} holds {len(found)} different words, more than data.most_categories "
                f"({most_categories}); leave it out of data.columns, or allow more"
            )
        return Column(name, "category", indicator=gaps, categories=(*found, *((_other_than(found),) if gaps else ())))
    known = values[~np.isnan(values)]
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = (float(known.mean()), float(known.std())) if len(known) else (0.0, 1.0)
    if not (math.isfinite(mean) and math.isfinite(deviation)):
        raise UserError(
            f"data: column {name!r} has values up to {np.abs(known).max():g}, too large for a mean and a deviation; "
            f"divide them first, or leave it out of data.columns"
        )
    first = tuple(values[:SHOWN].tolist())
    if len(known) and known.min() == known.max():
        return Column(name, "number", float(known[0]), 1.0, gaps, constant=True, first=first)
    if not deviation:  # differences so small that their squares underflow to 0
        spread = float(known.max() - known.min())
        deviation = spread * float(((known - known.min()) / spread).std())
    return Column(name, "number", mean, deviation, gaps, first=first)


def _other_than(words: Sequence[str]) -> str:
    """Return a name for the category of missing values that is no word of the column."""
    name = MISSING
    while name in words:
        name = f"({name})"
    return name


def missing_in(values: Values) -> np.ndarray:
    """Return for each row whether its value is missing."""
    return values.codes < 0 if isinstance(values, Text) else np.isnan(values)


def encode_all(columns: Sequence[Column], values: Sequence[Values], rows: int) -> Tensor:
    """Return the features of all columns side by side (rows, features)."""
    features = [column.encode(own) for column, own in zip(columns, values, strict=True)]
    return torch.cat(features, dim=1) if features else torch.zeros(rows, 0)


def as_words(values: Values) -> Text:
    """Take numbers for names of categories: 3.0 is the word 3."""
    if isinstance(values, Text):
        return values
    known, codes = np.unique(values, return_inverse=True)
    return Text(np.where(np.isnan(values), -1, codes), tuple(map(name_of, known[~np.isnan(known)])))


def name_of(number: np.number) -> str:
    """Write a number so that no other is written alike; a whole one with all its digits, whatever its type."""
    return str(int(number)) if number == np.round(number) and np.isfinite(number) else str(number)


def too_long(what: str, names: str = "data.categorical") -> UserError:
    """Return the error for whole numbers that no float holds; with the config keys `names` they count as names."""
    return UserError(
        f"data: {what} has whole numbers beyond 2^53, which would lose digits; name it in {names} if they are names, "
        f"divide them, or leave it out of data.columns"
    )
