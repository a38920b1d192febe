"""What in a table is hardly meant: a quantity as the label, one column under two names, columns that say nothing."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vfl.datasets.columns import Text, Values, as_words
from vfl.datasets.tables.holdings import Holding
from vfl.errors import UserError

MANY = 20
"""So many classes are no longer taken for granted; a table with no more rows is too small to judge its columns."""
MOST_CLASSES = 1000
ROWS_EACH = 10
"""Numbers that name classes stand in this many rows each, on average; those of a quantity in fewer."""
NEARLY = 0.95
"""An id differs in this share of the rows at least: one that was joined may name a few rows twice."""

_OF_AN_ID = re.compile(r"(?i:(^|[\W_])(id|uuid|key|number|nr))$|[a-z]I[dD]$")


class QuantityError(UserError):
    """A label that is a quantity, in a run that would make a class of each number."""


def doubts_of(label: str, holdings: Sequence[Holding], number: bool = False) -> list[str]:
    """Refuse what cannot be meant, the label as classes if it is no `number`; return a sentence on each doubt."""
    labels = next((own.label for own in holdings if own.label is not None), None)
    found = [] if labels is None or number else _check_label(label, labels)
    if len(holdings[0]) <= MANY:
        return found
    classes = None if labels is None else _Ranked.of(labels)
    for own in holdings:
        for name in own.values:
            found += [f"{_called(own, name)} {doubt}" for doubt in _column_doubts(own, name, classes)]
    return found


def _called(own: Holding, name: str) -> str:
    return f"data: column {name!r} of {own.brought.source}"


def _check_label(name: str, labels: Values) -> list[str]:
    rows, count = len(labels), _Ranked.of(labels).count
    kind = "words" if isinstance(labels, Text) else "numbers"
    finding = f"data.label: column {name!r} holds {count} different {kind} in {rows} rows, and a class is made of each"
    if isinstance(labels, Text):
        hardly, instead = (
            2 * count > rows,
            f"choose another column, or group them first (at most {MOST_CLASSES} classes)",
        )
    else:
        hardly = rows < ROWS_EACH * count or bool((labels != np.round(labels)).any())
        instead = (
            f"set training.loss to squared to predict a quantity, or, if these numbers are names of classes "
            f"(at most {MOST_CLASSES}), name the column in data.categorical"
        )
    if count > MOST_CLASSES or (count > MANY and hardly):
        raise (UserError if isinstance(labels, Text) else QuantityError)(f"{finding}; {instead}")
    return [f"{finding}: is that meant?"] if count > MANY else []


def _column_doubts(own: Holding, name: str, classes: "_Ranked | None") -> Iterator[str]:
    values, column = own.values[name], _Ranked.of(own.values[name])
    if column.count == 1:
        yield "holds the same value in every row: nothing can be learned from it, and its recovery shows nothing"
    elif classes is not None and column.same_rows(classes):
        if column.names() == classes.names():
            raise UserError(f"{_called(own, name)} is the label again, row by row: leave it out of data.columns")
        yield f"gives the label away: each of its {column.count} values stands beside one class alone"
    elif column.count >= NEARLY * len(values):
        if column.count == len(values) and column.names() == own.ids:
            raise UserError(f"{_called(own, name)} is the id again, row by row: leave it out of data.columns")
        if _counts_rows(name, values):
            yield "differs in nearly every row, as an id does: leave it out of data.columns if it is one"


def _counts_rows(name: str, values: Values) -> bool:
    """Tell whether values that all differ may be names of rows: words, numbers called so, or whole ones in a run."""
    if isinstance(values, Text) or _OF_AN_ID.search(name):
        return True
    whole = bool((values == np.round(values)).all())
    return whole and float(values.max() - values.min()) < 2 * len(values)


@dataclass(frozen=True)
class _Ranked:
    """A column as the ranks of its different values."""

    values: Values
    ranks: np.ndarray
    first: np.ndarray
    """The first row of each value."""

    @classmethod
    def of(cls, values: Values) -> "_Ranked":
        plain = values.codes if isinstance(values, Text) else values
        _, first, ranks = np.unique(plain, return_index=True, return_inverse=True)
        return cls(values, ranks, first)

    @property
    def count(self) -> int:
        return len(self.first)

    def same_rows(self, other: "_Ranked") -> bool:
        """Tell whether both are different in the same rows, whatever their values are called."""
        return self.count == other.count == len(np.unique(self.ranks * other.count + other.ranks))

    def names(self) -> tuple[str, ...]:
        """Return what the different values are called, in the order in which rows have them first."""
        words = as_words(self.values[np.sort(self.first)])
        return tuple("" if code < 0 else words.words[code] for code in words.codes)
