"""An open table: its header, and its columns as numbers or words, whatever kind of file they are in."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any
from unicodedata import normalize

import numpy as np
from pydantic import AfterValidator

from vfl import limits
from vfl.datasets.columns import LONGEST, Text, Values, as_words, too_long
from vfl.errors import UserError, missing_extra
from vfl.files.archive import ArchiveError
from vfl.limits import plain

TEXTS = ("string", "large_string", "string_view")
"""Arrow's types of text."""

NAMES = "data.categorical or data.id"
"""The config keys by which numbers count as names."""

WHOLE = r"^([-+]?(?:0|[1-9][0-9]*))\.0*$"
"""A whole number written with a point: as a name it is the same as without. 01.0 is another name than 1."""

_WHOLE = re.compile(r"[-+]?\d+(\.0*)?", re.ASCII)


class TableFile(ABC):
    """An open table: its header is known, columns are read when they are asked for."""

    def __init__(self, path: Path, missing: Collection[str], key: str) -> None:
        """Read the header. `key` is the option or config key that named the file, for error messages."""
        self.path, self._missing, self._key = path, missing, key
        with _reading(path, key):
            self._raw_header = self._read_header()
        self.header = tuple(normal(name.strip()) for name in self._raw_header)
        if len(self.header) > limits.TABLE_COLUMNS:
            raise UserError(f"data: {path} has {len(self.header)} columns, the limit is {limits.TABLE_COLUMNS}")
        twice = sorted(name for name, count in Counter(self.header).items() if count > 1)
        if twice:
            if self.headless():
                raise UserError(
                    f"data: {path} seems to have no header line: its first one holds {_listed(self.header)}; "
                    f"put a line with the columns' names before it"
                )
            raise UserError(f"data: {path} has more than one column called {_listed(twice)}; {self._rename_hint()}")

    @abstractmethod
    def _read_header(self) -> list[str]:
        """Return the columns' names as the file has them."""

    @abstractmethod
    def _read_columns(self, names: list[str]) -> list[Any]:
        """Return pyarrow's columns of these names, which are the file's own."""

    def headless(self) -> bool:
        """Return whether the line that should hold the columns' names looks like values."""
        return False

    def hint(self) -> str:
        """Return what may be wrong, in words, with a file whose header lacks a column."""
        return ""

    def _rename_hint(self) -> str:
        """Return what to do about two columns of one name."""
        return "rename them"

    def need(self, names: Collection[str], key: str) -> None:
        """Refuse a file that lacks one of these columns; `key` of the config names them."""
        lacking = [name for name in names if name not in self.header]
        if lacking:
            there = f"{self.path} has no column {_listed(lacking)}; it has {_listed(self.header)}"
            raise UserError(f"{key}: {there}{self.hint()}")

    def read(self, names: Sequence[str], as_text: Collection[str]) -> dict[str, Values]:
        """Return columns by name; those of `as_text` are words even where they look like numbers."""
        with _reading(self.path, self._key):
            columns = self._read_columns([self._raw_header[self.header.index(name)] for name in names])
            return {
                name: _values(column, name in as_text, self._missing, f"column {name!r} of {self.path}")
                for name, column in zip(names, columns, strict=True)
            }


def check_kind(kind: Any, what: str) -> None:
    """Refuse what is neither numbers nor text before it is read."""
    types = pyarrow("types")
    own = kind.value_type if types.is_dictionary(kind) else kind
    number = types.is_floating(own) or types.is_integer(own) or types.is_decimal(own)
    if not (number or str(own) in TEXTS or types.is_boolean(own) or types.is_null(own)):
        raise UserError(f"data: {what} is of the type {kind}, expected numbers or text; convert it or leave it out")


def check_size(path: Path, size: int) -> None:
    """Refuse a file that would take too much memory."""
    if size > limits.TABLE_BYTES:
        raise UserError(f"data: {path} takes {size} bytes when it is read, the limit is {limits.TABLE_BYTES}")


def _expanded(column: Any, what: str) -> Any:
    """Return a dictionary-encoded column with each row's word written out, unless that takes too much memory."""
    compute = pyarrow("compute")
    if str(column.type.value_type) in TEXTS:
        sizes = [compute.binary_length(part.dictionary).take(part.indices) for part in column.chunks]
        total = sum(compute.sum(one).as_py() or 0 for one in sizes)
        if total > limits.TABLE_BYTES:
            raise UserError(f"data: {what} takes {total} bytes when it is read, the limit is {limits.TABLE_BYTES}")
    return column.cast(column.type.value_type)


def _values(column: Any, as_text: bool, missing: Collection[str], what: str) -> Values:
    """Return a column as numbers if all that is there are numbers, else as words."""
    arrow, compute, types = pyarrow("lib"), pyarrow("compute"), pyarrow("types")
    if types.is_dictionary(column.type):
        column = _expanded(column, what)
    if str(column.type) in TEXTS:
        column = compute.utf8_normalize(compute.utf8_trim_whitespace(column), form="NFC")
        gone = compute.is_in(column, value_set=arrow.array(sorted(missing), column.type))
        column = compute.if_else(gone, arrow.scalar(None, column.type), column)
        if not as_text:
            try:
                return _numbers(column, what)
            except arrow.ArrowInvalid:
                return _words(column)
        return _words(compute.replace_substring_regex(column, pattern=WHOLE, replacement=r"\1"))
    if as_text and types.is_floating(column.type):
        return as_words(column.combine_chunks().to_numpy(zero_copy_only=False))  # null and NaN both count as missing
    if as_text and types.is_decimal(column.type):
        named = _words(column)
        return Text(named.codes, tuple(map(_written, named.words)))
    if types.is_boolean(column.type) or as_text:
        return _words(compute.cast(column, arrow.string()))
    try:
        return _numbers(column, what)
    except arrow.ArrowInvalid:
        raise too_long(what, NAMES) from None


def _numbers(column: Any, what: str) -> np.ndarray:
    """Return a column as floats; text and decimals with more digits than a float holds are refused here."""
    arrow, compute, types = pyarrow("lib"), pyarrow("compute"), pyarrow("types")
    floats = compute.cast(column, arrow.float64())
    if not (types.is_floating(column.type) or types.is_integer(column.type) or types.is_null(column.type)):
        large = compute.cast(column.filter(compute.greater_equal(compute.abs(floats), LONGEST)), arrow.string())
        for word in large.unique().to_pylist():
            if word and _WHOLE.fullmatch(word) and (len(word) > 400 or abs(int(word.partition(".")[0])) > LONGEST):
                raise too_long(what, NAMES)
    return np.array(floats.combine_chunks().to_numpy(zero_copy_only=False), dtype=np.float64)  # a null becomes NaN


def _written(number: object) -> str:
    """Write a decimal as floats are written: without trailing zeros, and without a point if none are left."""
    whole, point, rest = f"{number:f}".partition(".")
    return f"{whole}{point}{rest.rstrip('0')}".removesuffix(".")


def _words(column: Any) -> Text:
    encoded = column.combine_chunks().dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return Text(codes.astype(np.int64), tuple(encoded.dictionary.to_pylist()))


def pyarrow(module: str) -> Any:
    """Return one of pyarrow's modules, or say how to get it."""
    try:
        return import_module(f"pyarrow.{module}")
    except ImportError:
        raise missing_extra("data: tables are read by pyarrow", "it", "tables") from None


@contextmanager
def _reading(path: Path, key: str) -> Iterator[None]:
    """Turn what goes wrong with a file into a sentence."""
    if not path.is_file():
        raise UserError(f"{key}: {path} is a folder" if path.is_dir() else f"{key}: there is no file {path}")
    try:
        yield
    except (pyarrow("lib").ArrowException, ArchiveError, OSError, UnicodeError) as error:
        words = plain(" ".join(str(error).split())[:200])
        hint = " (is data.separator right?)" if "Expected 1 columns" in words else ""
        raise UserError(f"{key}: {path} cannot be read as a table: {words}{hint}") from None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} more"


_TIME = r"([T ]\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s?(Z|[+-]\d{2}:?\d{2}|[AaPp][Mm])?)?"
_DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d{2}))" + _TIME)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_SIGN = r"([$€£¥₹%]|[A-Z]{3}\b)?"
_NUMBER = re.compile(
    rf"{_SIGN}\s?[-+−]?\s?{_SIGN}\s?(\d{{1,3}}([,.'’ \u00a0\u202f]\d{{3}})+|\d+)?([.,]\d+)?([eE][-+]?\d+)?\s?{_SIGN}"
)


def normal(word: str) -> str:
    """Write accented letters in one of the forms that Unicode has for them (NFC): files have either."""
    return normalize("NFC", word)


Name = Annotated[str, AfterValidator(normal)]
"""A column's name in a config."""


def days_of(values: Text) -> np.ndarray | None:
    """Return dates as days since 1970-01-01 if all are written as 2024-01-31; None for other words."""
    if not values.words or not all(map(_DAY.fullmatch, values.words)):
        return None
    try:
        days = np.array(values.words, dtype="datetime64[D]").astype(np.float64)
    except ValueError:  # no calendar has such a day
        return None
    found: np.ndarray = np.append(days, np.nan)[values.codes]  # a code of -1 picks the last entry
    return found


def check_words(name: str, values: Text, source: str) -> None:
    """Refuse a column whose words are all dates, or all numbers in a notation that is not read as numbers."""
    words = [word for word in values.words if word]
    if not words:
        return
    where, otherwise = f"data: column {name!r} of {source}", "or name it in data.categorical if each is a category"
    if all(map(_DATE.fullmatch, words)):
        raise UserError(
            f"{where} holds dates ({plain(words[0])!r} for one); write all of them as 2024-01-31, make numbers of "
            f"them, leave it out of data.columns, {otherwise}"
        )
    if all(map(_is_amount, words)):
        strange = next((word for word in words if not is_number(word)), None)
        if strange is None:  # all are numbers but the empty word, which made the column one of words
            raise UserError(
                f"{where} holds numbers and empty words; put '' among data.missing_values if they are missing values, "
                f"{otherwise}"
            )
        raise UserError(
            f"{where} holds numbers, and {plain(strange)!r} is not written as one: leave out currency, percent and "
            f"thousands signs, write a decimal point and the digits 0 to 9, {otherwise}"
        )


def is_measured(word: str) -> bool:
    """Return whether a word is a number or a date, in whatever notation."""
    return _DATE.fullmatch(word) is not None or _is_amount(word)


def _is_amount(word: str) -> bool:
    return _NUMBER.fullmatch(word) is not None and any(one.isdigit() for one in word)


def is_number(word: str) -> bool:
    """Return whether pyarrow reads a word as a number: unlike Python it takes ASCII digits only."""
    try:
        float(word)
    except ValueError:
        return False
    return word.isascii() and "_" not in word
