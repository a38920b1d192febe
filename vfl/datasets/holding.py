"""What one party's table holds as it was read, before rows are joined and columns become features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vfl.datasets.encoding import Text, Values, missing_in, name_of
from vfl.errors import UserError

MOST_CLASSES = 1000
"""More than these are no classes, but a quantity or names."""


@dataclass(frozen=True)
class Holding:
    """Columns of one file by name, with the rows' ids and labels where it has them."""

    source: str
    ids: tuple[str, ...] | None
    values: Mapping[str, Values]
    label: Values | None

    def __len__(self) -> int:
        return len(next((own for own in (self.ids, self.label, *self.values.values()) if own is not None), ()))

    def only(self, names: Sequence[str]) -> "Holding":
        """Return some of the columns."""
        return replace(self, values={name: self.values[name] for name in names})

    def take(self, rows: np.ndarray) -> "Holding":
        """Return some of the rows, in that order."""
        return Holding(
            self.source,
            None if self.ids is None else tuple(self.ids[row] for row in rows.tolist()),
            {name: own[rows] for name, own in self.values.items()},
            None if self.label is None else self.label[rows],
        )

    def without_missing(self, policy: str) -> "Holding":
        """Do with missing values what the config says; a row without a label is of no use in any case."""
        for name, own in self.values.items():
            if not isinstance(own, Text) and np.isinf(own).any():
                raise UserError(f"data: column {name!r} of {self.source} has infinite values; correct them first")
        gone = {name: missing_in(own) for name, own in self.values.items()}
        if self.label is not None and policy != "drop" and missing_in(self.label).any():
            raise UserError(
                f"data.label: {int(missing_in(self.label).sum())} rows of {self.source} have no label; "
                f"set data.missing to drop to leave them out"
            )
        if policy == "refuse" and any(mask.any() for mask in gone.values()):
            counts = ", ".join(f"{name!r} ({int(mask.sum())} rows)" for name, mask in gone.items() if mask.any())
            raise UserError(
                f"data: {self.source} has missing values in {counts}; set data.missing to indicator (they become "
                f"features of their own) or drop (such rows are left out)"
            )
        if policy == "drop":
            masks = [*gone.values(), *([] if self.label is None else [missing_in(self.label)])]
            kept = np.flatnonzero(~np.logical_or.reduce(masks))
            if not len(kept):
                raise UserError(f"data.missing: every row of {self.source} lacks some value, so none is left")
            return self if len(kept) == len(self) else self.take(kept)
        return self


def classes_of(labels: Values) -> tuple[Tensor, tuple[str, ...]]:
    """Return each row's class, and the classes' names in order: words in that of the alphabet, numbers by size."""
    if isinstance(labels, Text):
        names = sorted(labels.words[code] for code in np.unique(labels.codes))
        _check_classes(len(names), "words", "group")
        place = {word: number for number, word in enumerate(names)}
        codes = np.array([place.get(word, -1) for word in labels.words])[labels.codes]
        return torch.from_numpy(codes), tuple(names)
    found, codes = np.unique(labels, return_inverse=True)
    _check_classes(len(found), "numbers", "bin")
    return torch.from_numpy(codes.astype(np.int64)), tuple(map(name_of, found))


def _check_classes(count: int, kind: str, do: str) -> None:
    if count > MOST_CLASSES:
        raise UserError(
            f"data.label: it holds {count} different {kind}, and a class is made of each; {do} them first, at most "
            f"{MOST_CLASSES} are allowed"
        )
