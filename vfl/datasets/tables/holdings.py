"""What one party's table holds as it was read, before rows are joined and columns become features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vfl.datasets.columns import Text, Values, missing_in
from vfl.errors import UserError
from vfl.folder.summary import RowsRead


@dataclass(frozen=True)
class Holding:
    """Columns of one file by name, with the rows' ids and labels where it has them."""

    brought: RowsRead
    ids: tuple[str, ...] | None
    values: Mapping[str, Values]
    label: Values | None
    dates: frozenset[str] = frozenset()
    """The columns whose numbers count days since 1970-01-01."""

    def __len__(self) -> int:
        return len(next((own for own in (self.ids, self.label, *self.values.values()) if own is not None), ()))

    def only(self, names: Sequence[str]) -> "Holding":
        """Return some of the columns."""
        return replace(self, values={name: self.values[name] for name in names})

    def take(self, rows: np.ndarray) -> "Holding":
        """Return some of the rows, in that order."""
        return Holding(
            self.brought,
            None if self.ids is None else tuple(self.ids[row] for row in rows.tolist()),
            {name: own[rows] for name, own in self.values.items()},
            None if self.label is None else self.label[rows],
            self.dates,
        )

    def without_missing(self, policy: str) -> "Holding":
        """Treat missing values as the config says; rows without a label are always left out, or refused."""
        source = self.brought.source
        for name, own in self.values.items():
            if not isinstance(own, Text) and np.isinf(own).any():
                raise UserError(f"data: column {name!r} of {source} has infinite values; correct them first")
        none = np.zeros(len(self), dtype=bool)
        unlabelled = none if self.label is None else missing_in(self.label)
        gone = {name: missing_in(own) for name, own in self.values.items()}
        if policy == "refuse":
            self._refuse(unlabelled, gone)
        incomplete = np.logical_or.reduce([none, *gone.values()]) if policy == "drop" else none
        kept = np.flatnonzero(~(unlabelled | incomplete))
        if not len(kept) and len(self):
            lacks = "has a label" if unlabelled.all() else "has all its values" if incomplete.all() else "has both"
            raise UserError(f"data.missing: no row of {source} {lacks}, so none is left")
        if len(kept) == len(self):
            return self
        left_out = {"unlabelled": int(unlabelled.sum()), "incomplete": int((incomplete & ~unlabelled).sum())}
        return replace(self.take(kept), brought=self.brought.model_copy(update=left_out))

    def _refuse(self, unlabelled: np.ndarray, gone: Mapping[str, np.ndarray]) -> None:
        """Raise an error that says what is missing."""
        if unlabelled.any():
            raise UserError(
                f"data.label: {int(unlabelled.sum())} rows of {self.brought.source} have no label; set data.missing to "
                f"indicator or drop to leave them out (drop leaves out those without any other value, too)"
            )
        counts = ", ".join(f"{name!r} ({int(mask.sum())} rows)" for name, mask in gone.items() if mask.any())
        if counts:
            raise UserError(
                f"data: {self.brought.source} has missing values in {counts}; set data.missing to indicator (they "
                f"become features of their own) or drop (such rows are left out)"
            )
