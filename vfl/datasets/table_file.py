"""Tables on disk, CSV and Parquet, through pyarrow: columns of numbers or words, and ids as they are written."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from vfl import limits
from vfl.datasets.encoding import LONGEST, Text, Values, as_words, too_long
from vfl.datasets.wording import is_number
from vfl.errors import UserError
from vfl.limits import plain

TEXTS = ("string", "large_string", "string_view")
"""Arrow's types of text."""

NAMES = "data.categorical or data.id"
"""What says that numbers are names."""

_WHOLE = re.compile(r"[-+]?\d+(\.0*)?", re.ASCII)


class TableFile:
    """An open table: its header is known, columns are read when they are asked for."""

    def __init__(self, path: Path, separator: str | None, missing: Collection[str], key: str) -> None:
        """Read the header; without a separator the file is Parquet. `key` is what named it, for sentences."""
        self.path, self._separator, self._missing, self._key = path, separator, missing, key
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
        return self._separator is not None and any(map(is_number, self.header))

    def hint(self) -> str:
        """Return what may be wrong with a CSV file whose header lacks a column."""
        if self._separator is not None and len(self.header) == 1:
            others = [one for one in ";,\t|" if one in self.header[0] and one != self._separator]
            if others:
                return f" (is it separated by {others[0]!r}? then set data.separator)"
        return " (has the file no header line?)" if self._headless() else ""

    def need(self, names: Collection[str], key: str) -> None:
        """Say which of these columns the file has not."""
        lacking = [name for name in names if name not in self.header]
        if lacking:
            there = f"{self.path} has no column {_listed(lacking)}; it has {_listed(self.header)}"
            raise UserError(f"{key}: {there}{self.hint()}")

    def read(self, names: Sequence[str], as_text: Collection[str]) -> dict[str, Values]:
        """Return columns by name; those of `as_text` are words even where they look like numbers."""
        with _reading(self.path, self._key):
            table = self._read_table([self._raw_header[self.header.index(name)] for name in names])
            return {
                name: _values(table.column(place), name in as_text, self._missing, f"column {name!r} of {self.path}")
                for place, name in enumerate(names)
            }

    def _read_header(self) -> list[str]:
        if self._separator is None:
            return list(_pyarrow("parquet").read_schema(self.path).names)
        csv = _pyarrow("csv")
        # One small block: the types that would be guessed from it do not matter.
        with csv.open_csv(self.path, csv.ReadOptions(block_size=1 << 20), self._parsing()) as reader:
            return list(reader.schema.names)

    def _read_table(self, names: list[str]) -> Any:
        if self._separator is None:
            return _read_parquet(self.path, names)
        _check_size(self.path, self.path.stat().st_size)
        csv, text = _pyarrow("csv"), _pyarrow("lib").string()
        # All as text: pyarrow guesses a column's type from the first rows, and a million rows later it may be wrong.
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(names, text), include_columns=names, strings_can_be_null=False
        )
        return csv.read_csv(self.path, csv.ReadOptions(), self._parsing(), convert)

    def _parsing(self) -> Any:
        assert self._separator is not None
        # Lines may end within quotes: otherwise a file is cut into blocks there.
        return _pyarrow("csv").ParseOptions(delimiter=self._separator, newlines_in_values=True)


def _read_parquet(path: Path, names: list[str]) -> Any:
    """Read columns, after a look at what they unpack to: a few bytes may be many rows, or a long text in each."""
    parquet = _pyarrow("parquet")
    about = parquet.read_metadata(path)
    groups = sum(about.row_group(place).total_byte_size for place in range(about.num_row_groups))
    _check_size(path, max(groups, 8 * about.num_rows * len(names)))
    schema = parquet.read_schema(path)
    kinds = {name: schema.field(name).type for name in names}
    for name, kind in kinds.items():
        _check_kind(kind, f"column {name.strip()!r} of {path}")
    texts = [name for name, kind in kinds.items() if str(kind) in TEXTS]  # stay dictionaries until they are counted
    return parquet.read_table(path, columns=names, read_dictionary=texts)


def _check_kind(kind: Any, what: str) -> None:
    """Refuse what is neither numbers nor text before it is read."""
    types = _pyarrow("types")
    own = kind.value_type if types.is_dictionary(kind) else kind
    number = types.is_floating(own) or types.is_integer(own) or types.is_decimal(own)
    if not (number or str(own) in TEXTS or types.is_boolean(own) or types.is_null(own)):
        raise UserError(f"data: {what} is of the type {kind}, expected numbers or text; convert it or leave it out")


def _check_size(path: Path, size: int) -> None:
    if size > limits.TABLE_BYTES:
        raise UserError(f"data: {path} takes {size} bytes when it is read, the limit is {limits.TABLE_BYTES}")


def _expanded(column: Any, what: str) -> Any:
    """Return a column of words that is written as numbers into a list of them, with each word where it stands."""
    compute = _pyarrow("compute")
    if str(column.type.value_type) in TEXTS:
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
    if str(column.type) in TEXTS:
        column = compute.utf8_trim_whitespace(column)
        gone = compute.is_in(column, value_set=arrow.array(sorted(missing), column.type))
        column = compute.if_else(gone, arrow.scalar(None, column.type), column)
        if not as_text:
            try:
                return _numbers(column, what)
            except arrow.ArrowInvalid:
                pass
        return _words(column)
    if as_text and types.is_floating(column.type):
        return as_words(column.combine_chunks().to_numpy(zero_copy_only=False))  # a null becomes NaN, and -1 both
    if types.is_boolean(column.type) or as_text:
        return _words(compute.cast(column, arrow.string()))
    try:
        return _numbers(column, what)
    except arrow.ArrowInvalid:
        raise too_long(what, NAMES) from None


def _numbers(column: Any, what: str) -> np.ndarray:
    """Return a column as floats; whole numbers that text or decimals have too many digits of are refused here."""
    arrow, compute, types = _pyarrow("lib"), _pyarrow("compute"), _pyarrow("types")
    floats = compute.cast(column, arrow.float64())
    if not (types.is_floating(column.type) or types.is_integer(column.type) or types.is_null(column.type)):
        large = compute.cast(column.filter(compute.greater_equal(compute.abs(floats), LONGEST)), arrow.string())
        for word in large.unique().to_pylist():
            if word and _WHOLE.fullmatch(word) and (len(word) > 400 or abs(int(word.partition(".")[0])) > LONGEST):
                raise too_long(what, NAMES)
    return np.array(floats.combine_chunks().to_numpy(zero_copy_only=False), dtype=np.float64)  # a null becomes NaN


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
        hint = " (is data.separator right?)" if "Expected 1 columns" in said else ""
        raise UserError(f"{key}: {path} cannot be read as a table: {said}{hint}") from None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} more"
