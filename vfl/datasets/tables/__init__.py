"""Tables from files: which columns belong to which worker, which is the label, which the id that rows are joined by."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, PrivateAttr, field_validator, model_validator

from vfl.datasets import Data, DataSet, data_path, datasets
from vfl.datasets.columns import Text, Values, as_words, encode_all, fit_column, missing_in
from vfl.datasets.tables.doubts import doubts_of
from vfl.datasets.tables.file import Name, TableFile, check_words, days_of
from vfl.datasets.tables.formats import CsvFile, ParquetFile
from vfl.datasets.tables.holdings import Holding
from vfl.datasets.tables.labels import learned_from, no_labels
from vfl.errors import UserError
from vfl.folder.summary import RowsRead, Tables
from vfl.net.alignment import check_ids, common_hashes, keyed_hashes, rows_of

SIMULATED_KEY = b"everybody in a simulation may know this"
"""Decides the order of joined rows: changing it changes which rows a seed trains and tests on."""


class TableSet(DataSet):
    """A table in one file (`path`), or in one file a worker (`files`) whose rows are joined by `id`."""

    path: Path | None = Field(None, description="one file with all columns")
    files: tuple[Path, ...] | None = Field(None, description="one file a worker, instead of path")
    label: Name = Field(description="the column to predict")
    id: Name | None = Field(None, description="the column that names a row; files of several parties need it")
    columns: tuple[tuple[Name, ...], ...] | None = Field(
        None, description="a list of columns for each worker; without it all others are used, path's divided evenly"
    )
    categorical: tuple[Name, ...] = Field((), description="columns of numbers that are names of categories")
    missing: Literal["refuse", "indicator", "drop"] = Field(
        "refuse", description="values that are not there: a sentence; a feature or category of their own; no such rows"
    )
    missing_values: tuple[Name, ...] = Field(
        ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL"), description="words for a value that is not there"
    )
    most_categories: int = Field(100, ge=1, description="the most different words that a column may hold")

    _holder: int | None = PrivateAttr(None)
    """Which of the files has the labels; None: the one that has their column."""

    _number: bool = PrivateAttr(False)
    """Whether the label is a number to predict."""

    @model_validator(mode="after")
    def _one_source(self) -> "TableSet":
        if (self.path is None) == (self.files is None):
            raise ValueError("give either path, one file for all, or files, one for each worker")
        if self.label == self.id:
            raise ValueError(f"label and id are both {self.label!r}; what is predicted cannot also name the rows")
        if self.files is not None and self.id is None:
            raise ValueError("files of several parties are joined by an id: give id, the column that names a row")
        # A label holder without features, the last worker, has a file and no columns.
        if self.files and self.columns and len(self.files) - len(self.columns) not in (0, 1):
            raise ValueError(f"there are {len(self.files)} files and columns for {len(self.columns)} workers")
        return self

    def with_labels_at(self, worker: int | None) -> "TableSet":
        """Return the same table with the labels of this worker's file."""
        table = self.model_copy()
        table._holder = worker
        return table

    def predicting_numbers(self) -> "TableSet":
        """Return the same table with a quantity as its label."""
        table = self.model_copy()
        table._number = True
        return table

    def load(self) -> Data:
        """Read, join and encode the whole table, as the simulation divides it."""
        if self.path is not None:
            holdings = self._divided(data_path(self.path))
        else:
            assert self.files is not None
            files = [self._open(data_path(path), "data.files") for path in self.files]
            headers = [file.header for file in files]
            self._check_categorical({name for header in headers for name in header}, "the files")
            holder = self._holder_among(headers)
            holdings = _joined([self._held(file, worker, worker == holder) for worker, file in enumerate(files)])
        return self.encode(holdings)

    def holding(self, path: Path, worker: int, with_label: bool, key: str) -> Holding:
        """Read one worker's own file, which `key` names: its columns, the ids and, of the label holder, the labels."""
        return self._held(self._open(path, key), worker, with_label)

    def _held(self, file: TableFile, worker: int, with_label: bool) -> Holding:
        path = file.path
        if with_label and self.label not in file.header:
            raise UserError(
                f"data.label: {path} has no column {self.label!r}, and worker {worker} is the label holder "
                f"(federation.label_holder){file.hint()}"
            )
        names = self._columns_of(worker, file, with_label)
        if not names and not with_label:
            raise UserError(f"data: {path} has no columns besides {self.label!r} and {self.id!r}")
        return self._read(file, names, with_label)

    def encode(self, holdings: Sequence[Holding]) -> Data:
        """Make data of holdings whose rows are the same: the first rows to train with, the last ones to test."""
        doubts = doubts_of(self.label, holdings, self._number)
        rows, tested = len(holdings[0]), self.test_samples or 0
        count = rows - tested if self.samples is None else self.samples
        if count < 1 or count + tested > rows:
            asked = f"{count} rows to train with and {tested} to test"
            raise UserError(f"data.samples: {asked} are asked for, the table has {rows}")
        train, test = slice(0, count), slice(rows - tested, rows)
        named = [(name, own) for holding in holdings for name, own in holding.values.items()]
        dates = frozenset[str]().union(*(holding.dates for holding in holdings))
        columns = tuple(
            replace(
                fit_column(name, own[train], self.most_categories, bool(missing_in(own[test]).any())),
                date=name in dates,
            )
            for name, own in named
        )
        labels = next((holding.label for holding in holdings if holding.label is not None), None)
        learned = (
            learned_from(self.label, labels, train, number=self._number) if labels is not None else no_labels(rows)
        )
        grouped = self.columns is not None or self.files is not None
        return Data(
            "table",
            encode_all(columns, [own[train] for _, own in named], count),
            learned.y[train],
            learned.classes,
            (holdings[0].ids or tuple(map(str, range(rows))))[train],
            encode_all(columns, [own[test] for _, own in named], tested) if tested else None,
            learned.y[test] if tested else None,
            columns,
            groups=tuple(len(holding.values) for holding in holdings) if grouped else None,
            label=self.label,
            target=learned.target,
            class_names=learned.names,
            tables=Tables(rows=rows, files=list(dict.fromkeys(own.brought for own in holdings)), doubts=doubts),
        )

    def _check_categorical(self, header: Collection[str], source: str) -> None:
        """Refuse names of no column; `cafe work` cannot check this, as a worker sees only its own columns."""
        lacking = [name for name in self.categorical if name not in header]
        if lacking:
            raise UserError(f"data.categorical: there is no column {lacking[0]!r} in {source}")

    def _holder_among(self, headers: Sequence[Sequence[str]]) -> int:
        """Return which file has the labels: the label holder's, or the only one with their column."""
        if self._holder is not None:
            if self._holder >= len(headers):
                raise UserError(
                    f"data.files: there are {len(headers)}, one a worker, and worker {self._holder} is the label holder"
                )
            return self._holder
        having = [worker for worker, header in enumerate(headers) if self.label in header]
        if len(having) != 1:
            count = f"{len(having)} of the files have" if having else "none of the files has"
            raise UserError(f"data.label: {count} a column {self.label!r}, expected one")
        return having[0]

    def _columns_of(self, worker: int, file: TableFile, with_label: bool) -> Sequence[str]:
        """Return which columns a worker's file is read for; a label holder after the last list has none."""
        if self.columns is None:
            return [name for name in file.header if name not in (self.label, self.id)]
        if worker >= len(self.columns) + with_label:
            raise UserError(f"data.columns: lists the columns of {len(self.columns)} workers, none of worker {worker}")
        return self.columns[worker] if worker < len(self.columns) else ()

    def _divided(self, path: Path) -> list[Holding]:
        """Read a file with all workers' columns; rows stay in its order."""
        file = self._open(path, "data.path")
        file.need([self.label], "data.label")
        self._check_categorical(file.header, str(path))
        others = [name for name in file.header if name not in (self.label, self.id)]
        groups = self.columns or (tuple(others),)
        names = [name for group in groups for name in group]
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise UserError(f"data.columns: {twice[0]!r} is held by more than one worker")
        if not names:
            raise UserError(f"data: {path} has no columns besides {self.label!r} and {self.id!r}")
        whole = self._read(file, names, with_label=True)
        return [whole.only(group) for group in groups]

    def _read(self, file: TableFile, names: Sequence[str], with_label: bool) -> Holding:
        if self.id is not None:
            file.need([self.id], "data.id")
        file.need(names, "data.columns")
        if self.label in names or self.id in names:
            raise UserError(f"data.columns: {self.label if self.label in names else self.id!r} is the label or the id")
        asked = [*names, *([self.label] if with_label else []), *([self.id] if self.id else [])]
        values = file.read(asked, {*self.categorical, *([self.id] if self.id else [])})
        words = {name: own for name in names if isinstance(own := values[name], Text) and name not in self.categorical}
        days = {name: found for name, own in words.items() if (found := days_of(own)) is not None}
        for name, own in words.items():
            if name not in days:
                check_words(name, own, str(file.path))
        values |= days
        ids = _ids(values[self.id], file.path) if self.id else None
        if ids is not None:
            check_ids(ids, str(file.path))
        return Holding(
            RowsRead(source=str(file.path), rows=len(values[asked[0]])),
            ids,
            {name: as_words(values[name]) if name in self.categorical else values[name] for name in names},
            values[self.label] if with_label else None,
            frozenset(days),
        ).without_missing(self.missing)

    def _open(self, path: Path, key: str) -> TableFile:
        raise NotImplementedError


@datasets.register("csv")
class Csv(TableSet):
    """A table in text files (UTF-8, a header line) whose columns belong to workers by name."""

    separator: str = Field(",", description="one ASCII character")

    @field_validator("separator")
    @classmethod
    def _one_byte(cls, separator: str) -> str:
        if len(separator) != 1 or not separator.isascii() or separator in '"\r\n':
            raise ValueError("it is one ASCII character, such as ; or a tab, and no quote or line break")
        return separator

    def _open(self, path: Path, key: str) -> TableFile:
        return CsvFile(path, self.separator, self.missing_values, key)


@datasets.register("parquet")
class Parquet(TableSet):
    """A table in Parquet files whose columns belong to workers by name."""

    def _open(self, path: Path, key: str) -> TableFile:
        return ParquetFile(path, self.missing_values, key)


def _ids(values: Values, path: Path) -> tuple[str, ...]:
    assert isinstance(values, Text)
    gone = np.array([*(not word for word in values.words), True])[values.codes]  # a code of -1 picks the last entry
    if gone.any():
        raise UserError(f"data.id: row {int(np.argmax(gone)) + 1} of {path} has no id; give each row one")
    return tuple(values.words[code] for code in values.codes)


def _joined(holdings: Sequence[Holding]) -> list[Holding]:
    """Keep the rows that all files have, in one order: `cafe work` does the same through the coordinator."""
    hashes = [keyed_hashes(own.ids or (), SIMULATED_KEY) for own in holdings]
    common = common_hashes(hashes)
    if not len(common):
        raise UserError(f"data.id: no id is in all of {', '.join(own.brought.source for own in holdings)}")
    return [own.take(rows_of(common, mine)) for own, mine in zip(holdings, hashes, strict=True)]
