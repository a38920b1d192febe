"""What is learned from a table's label column: a class for each value, or the number itself, scaled."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vfl.datasets.columns import Column, Text, Values, fit_column, name_of
from vfl.errors import UserError


@dataclass(frozen=True)
class Learned:
    """The labels of all rows, as a model learns them."""

    y: Tensor
    names: tuple[str, ...] = ()
    """What the classes are called."""
    target: Column | None = None
    """The units of a number."""

    @property
    def classes(self) -> int:
        """Return how many classes there are; 1 stands for a number."""
        return 1 if self.target else len(self.names)


def no_labels(rows: int) -> Learned:
    """Return what a worker has that holds none."""
    return Learned(torch.zeros(rows, dtype=torch.int64))


def learned_from(name: str, labels: Values, train: slice, *, number: bool) -> Learned:
    """Return what is learned from a column; a number is scaled as features are, by the rows to train with."""
    if not number:
        return Learned(*classes_of(labels))
    if isinstance(labels, Text):
        raise UserError(
            f"data.label: column {name!r} holds words, and training.loss squared predicts a number; choose another "
            f"column, or another loss"
        )
    column = fit_column(name, labels[train], 1)
    return Learned(column.encode(labels)[:, 0], target=column)


def classes_of(labels: Values) -> tuple[Tensor, tuple[str, ...]]:
    """Return each row's class, and the classes' names in order: words by the alphabet, numbers by size."""
    if isinstance(labels, Text):
        names = sorted(labels.words[code] for code in np.unique(labels.codes))
        place = {word: number for number, word in enumerate(names)}
        codes = np.array([place.get(word, -1) for word in labels.words])[labels.codes]
        return torch.from_numpy(codes), tuple(names)
    found, codes = np.unique(labels, return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64)), tuple(map(name_of, found))
