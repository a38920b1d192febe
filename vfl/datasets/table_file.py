"""Tables on disk, CSV and Parquet, through pyarrow: columns of numbers or words, and ids as they are written."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from vfl import limits
from vfl.datasets.encoding import Text, Values
from vfl.datasets.wording import is_number
from vfl.errors import UserError
from vfl.limits import plain


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written."""

    separator: str
    missing: tuple[str, ...]
    """What stands for a value that is not there."""


class TableFile:
    """An open table: its header is known, columns are read when they are asked for."""

    def __init__(self, path: Path, dialect: Dialect | None, key: str) -> None:
        """Read the header; without a dialect the file is Parquet. `key` is what named it, for sentences."""
        self.path, self._dialect, self._key = path, dialect, key
        with _reading(path, key):
            self._raw_header = self._read_header()
        self.header = tuple(name.strip() for name in self._raw_header)
        if len(self.header) > limits.TABLE_COLUMNS:
            raise UserError(f"data: {path} has {len(self.header)} columns, the limit is {limits.TABLE_COLUMNS}")
        twice = sorted(name for name, count in Counter(self.header).items() if count > 1)
        if twice:
            if self._headless():
                raise UserError(
                    f"data: {path} seems to have no header line: its first one holds {_listed(self.header)}; "
                    f"put a line with the columns' names before it"
                )
            raise UserError(
                f"data: {path} has more than one column called {_listed(twice)}; "
                f"rename them, or add the header line if it has none"
            )

    def _headless(self) -> bool:
        """Tell whether the first line of a CSV file looks like one of values."""
        return self._dialect is not None and any(map(is_number, self.header))

    def need(self, names: Collection[str], key: str) -> None:
        """Say which of these columns the file has not."""
        lacking = [name for name in names if name not in self.header]
        if lacking:
            hint = " (has the file no header line?)" if self._headless() else ""
            raise UserError(f"{key}: {self.path} has no column {_listed(lacking)}; it has {_listed(self.header)}{hint}")

    def read(self, names: Sequence[str], as_text: Collection[str]) -> dict[str, Values]:
        """Return columns by name; those of `as_text` are words even where they look like numbers."""
        with _reading(self.path, self._key):
            table = self._read_table([self._raw_header[self.header.index(name)] for name in names])
            missing = self._dialect.missing if self._dialect else ()
            return {
                name: _values(table.column(place), name in as_text, missing, f"column {name!r} of {self.path}")
                for place, name in enumerate(names)
            }

    def _read_header(self) -> list[str]:
        if self._dialect is None:
            return list(_pyarrow("parquet").read_schema(self.path).names)
        csv = _pyarrow("csv")
        # One small block: the types that would be guessed from it do not matter.
        with csv.open_csv(self.path, csv.ReadOptions(block_size=1 << 20), self._parsing()) as reader:
            return list(reader.schema.names)

    def _read_table(self, names: list[str]) -> Any:
        if self._dialect is None:
            return _read_parquet(self.path, names)
        _check_size(self.path, self.path.stat().st_size)
        csv, text = _pyarrow("csv"), _pyarrow("lib").string()
        # All as text: pyarrow guesses a column's type from the first rows, and a million rows later it may be wrong.
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(names, text), include_columns=names, strings_can_be_null=False
        )
        return csv.read_csv(self.path, csv.ReadOptions(), self._parsing(), convert)

    def _parsing(self) -> Any:
        assert self._dialect is not None
        # Lines may end within quotes: otherwise a file is cut into blocks there.
        return _pyarrow("csv").ParseOptions(delimiter=self._dialect.separator, newlines_in_values=True)


def _read_parquet(path: Path, names: list[str]) -> Any:
    """Read columns, after a look at what they unpack to: a few bytes may be many rows, or a long text in each."""
    parquet, types = _pyarrow("parquet"), _pyarrow("types")
    about = parquet.read_metadata(path)
    groups = sum(about.row_group(place).total_byte_size for place in range(about.num_row_groups))
    _check_size(path, max(groups, 8 * about.num_rows * len(names)))
    schema = parquet.read_schema(path)
    texts = [name for name in names if types.is_string(schema.field(name).type)]
    return parquet.read_table(path, columns=names, read_dictionary=texts)


def _check_size(path: Path, size: int) -> None:
    if size > limits.TABLE_BYTES:
        raise UserError(f"data: {path} takes {size} bytes when it is read, the limit is {limits.TABLE_BYTES}")


def _expanded(column: Any, what: str) -> Any:
    """Return a column of words that is written as numbers into a list of them, with each word where it stands."""
    compute, types = _pyarrow("compute"), _pyarrow("types")
    if types.is_string(column.type.value_type) or types.is_large_string(column.type.value_type):
        sizes = [compute.binary_length(part.dictionary).take(part.indices) for part in column.chunks]
        total = sum(compute.sum(one).as_py() or 0 for one in sizes)
        if total > limits.TABLE_BYTES:
            raise UserError(f"data: {what} takes {total} bytes when it is read, the limit is {limits.TABLE_BYTES}")
    return column.cast(column.type.value_type)


def _values(column: Any, as_text: bool, missing: Collection[str], what: str) -> Values:
    """Return a column as numbers if all that is there are numbers, else as words."""
    arrow, compute, types = _pyarrow("lib"), _pyarrow("compute"), _pyarrow("types")
    if types.is_dictionary(column.type):
        column = _expanded(column, what)
    if types.is_string(column.type) or types.is_large_string(column.type):
        column = compute.utf8_trim_whitespace(column)
        gone = compute.is_in(column, value_set=arrow.array(sorted(missing), column.type))
        column = compute.if_else(gone, arrow.scalar(None, column.type), column)
        if not as_text:
            try:
                return _numbers(compute.cast(column, arrow.float64()))
            except arrow.ArrowInvalid:
                pass
        return _words(column)
    number = types.is_floating(column.type) or types.is_integer(column.type) or types.is_decimal(column.type)
    if types.is_boolean(column.type) or (number and as_text):
        return _words(compute.cast(column, arrow.string()))
    if number or types.is_null(column.type):
        try:
            return _numbers(compute.cast(column, arrow.float64()))
        except arrow.ArrowInvalid:
            raise UserError(
                f"data: {what} has whole numbers beyond 2^53, which would lose digits; name it in data.categorical "
                f"or data.id if they are names, divide them, or leave it out of data.columns"
            ) from None
    raise UserError(f"data: {what} is of the type {column.type}, expected numbers or text; convert it or leave it out")


def _numbers(column: Any) -> np.ndarray:
    return np.array(column.combine_chunks().to_numpy(zero_copy_only=False), dtype=np.float64)  # a null becomes NaN


def _words(column: Any) -> Text:
    encoded = column.combine_chunks().dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return Text(codes.astype(np.int64), tuple(encoded.dictionary.to_pylist()))


def _pyarrow(module: str) -> Any:
    try:
        return import_module(f"pyarrow.{module}")
    except ImportError:
        raise UserError("data: csv and parquet files are read by pyarrow: pip install 'cafe-vfl[tables]'") from None


@contextmanager
def _reading(path: Path, key: str) -> Iterator[None]:
    """Turn what goes wrong with a file into a sentence."""
    if not path.is_file():
        raise UserError(f"{key}: {path} is a folder" if path.is_dir() else f"{key}: there is no file {path}")
    try:
        yield
    except (_pyarrow("lib").ArrowException, OSError, UnicodeDecodeError) as error:
        said = plain(" ".join(str(error).split())[:200])
        raise UserError(f"{key}: {path} cannot be read as a table: {said}") from None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} more"
