"""Kinds of files that tables are in: CSV, Parquet and NumPy archives."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from vfl.datasets.tables.file import TEXTS, TableFile, check_kind, check_size, is_number, pyarrow
from vfl.errors import UserError
from vfl.files.archive import read_archive
from vfl.limits import TABLE_COLUMNS

HEADER_BYTES = 1 << 20
"""The longest header line of a CSV file."""
PACKED = (".gz", ".bz2", ".xz", ".lz4", ".zst", ".br", ".zip")
"""Endings of compressed files, whose unpacked size is not known before."""

MATRIX, HEADER = "x", "feature_names"
"""Arrays of an archive: columns side by side, and their names."""


class CsvFile(TableFile):
    """Text with a header line and a separator."""

    def __init__(self, path: Path, separator: str, missing: Collection[str], key: str) -> None:
        """Read the header."""
        self._separator = separator
        if path.suffix.lower() in PACKED:
            raise UserError(f"{key}: {path} is compressed; unpack it first")
        super().__init__(path, missing, key)

    def headless(self) -> bool:
        """Tell whether the first line looks like one of values."""
        return any(map(is_number, self.header))

    def hint(self) -> str:
        """Return what may be wrong with the separator or the header line."""
        if len(self.header) == 1:
            others = [one for one in ";,\t|" if one in self.header[0] and one != self._separator]
            if others:
                return f" (is it separated by {others[0]!r}? then set data.separator)"
        return " (has the file no header line?)" if self.headless() else ""

    def _rename_hint(self) -> str:
        return "rename them, or add the header line if it has none"

    def _read_header(self) -> list[str]:
        csv = pyarrow("csv")
        with self.path.open("rb") as start:
            first = start.read(HEADER_BYTES).splitlines()[:1]
        columns = sum(line.count(self._separator.encode()) + 1 for line in first)
        if columns > TABLE_COLUMNS:  # pyarrow takes kilobytes for each before it says how many there are
            raise UserError(f"data: {self.path} has {columns} columns or more, the limit is {TABLE_COLUMNS}")
        # One small block: the types that would be guessed from it do not matter.
        options = csv.ReadOptions(block_size=HEADER_BYTES)
        with self._opened() as file, csv.open_csv(file, options, self._parsing()) as reader:
            return list(reader.schema.names)

    def _read_columns(self, names: list[str]) -> list[Any]:
        check_size(self.path, self.path.stat().st_size)
        csv, text = pyarrow("csv"), pyarrow("lib").string()
        # All as text: pyarrow guesses a column's type from the first rows, and a million rows later it may be wrong.
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(names, text), include_columns=names, strings_can_be_null=False
        )
        with self._opened() as file:
            return list(csv.read_csv(file, csv.ReadOptions(), self._parsing(), convert).columns)

    def _opened(self) -> Any:
        return pyarrow("lib").OSFile(str(self.path))  # given a path, pyarrow would unpack a file by its ending

    def _parsing(self) -> Any:
        # Quoted values may hold line breaks: without this pyarrow cuts its blocks inside them.
        return pyarrow("csv").ParseOptions(delimiter=self._separator, newlines_in_values=True)


class ParquetFile(TableFile):
    """Columns with types."""

    def _read_header(self) -> list[str]:
        return list(pyarrow("parquet").read_schema(self.path).names)

    def _read_columns(self, names: list[str]) -> list[Any]:
        """Read columns, once their unpacked size is checked: a few bytes may stand for many rows or long texts."""
        parquet = pyarrow("parquet")
        about = parquet.read_metadata(self.path)
        groups = sum(about.row_group(place).total_byte_size for place in range(about.num_row_groups))
        check_size(self.path, max(groups, 8 * about.num_rows * len(names)))
        schema = parquet.read_schema(self.path)
        kinds = {name: schema.field(name).type for name in names}
        for name, kind in kinds.items():
            check_kind(kind, f"column {name.strip()!r} of {self.path}")
        # Texts come as dictionaries, so that their size can be checked before they are written out.
        texts = [name for name, kind in kinds.items() if str(kind) in TEXTS]
        return list(parquet.read_table(self.path, columns=names, read_dictionary=texts).columns)


class NpzFile(TableFile):
    """Arrays: each of one dimension is a column by its name, the columns of `x` have theirs in `feature_names`."""

    def _read_header(self) -> list[str]:
        arrays = read_archive(self.path)
        names = arrays.pop(HEADER, None)
        matrix = arrays.pop(MATRIX) if MATRIX in arrays and arrays[MATRIX].ndim == 2 else None
        strange = next((name for name, array in arrays.items() if array.ndim != 1), None)
        if strange is not None:
            raise UserError(
                f"data.label: {self.path} is no table: {strange} has the shape {arrays[strange].shape}, and each array "
                f"is a column, but for {MATRIX}, which may have two dimensions, and {HEADER}, its columns' names; "
                f"x_train and y_train are read without data.label"
            )
        columns = [] if matrix is None else [*zip(_names(names, matrix, self.path), matrix.T, strict=True)]
        self._columns = [*columns, *arrays.items()]
        lengths = {len(array): name for name, array in self._columns}
        if len(lengths) > 1:
            lists = ", ".join(f"{name!r} has {length} rows" for length, name in sorted(lengths.items()))
            raise UserError(f"data: the columns of {self.path} are not of one length: {lists}")
        return [name for name, _ in self._columns]

    def _read_columns(self, names: list[str]) -> list[Any]:
        found = dict(self._columns)
        columns = [pyarrow("lib").chunked_array([_plain(found[name])]) for name in names]
        for name, column in zip(names, columns, strict=True):
            check_kind(column.type, f"column {name.strip()!r} of {self.path}")
        return columns


def _names(names: np.ndarray | None, matrix: np.ndarray, path: Path) -> list[str]:
    """Return the names of a matrix's columns, their numbers if it has none."""
    if names is None:
        return [str(number) for number in range(matrix.shape[1])]
    if names.ndim != 1 or len(names) != matrix.shape[1] or names.dtype.kind not in "USiu":
        raise UserError(
            f"data: {path} has {matrix.shape[1]} columns in {MATRIX}, and {HEADER} is {names.dtype} of shape "
            f"{names.shape}; it must be a row of words, one for each"
        )
    return [str(name) for name in _decoded(names).tolist()]


def _plain(array: np.ndarray) -> Any:
    """Return an array as one of pyarrow's."""
    return pyarrow("lib").array(np.ascontiguousarray(_decoded(array)))


def _decoded(array: np.ndarray) -> np.ndarray:
    """Return text (or UTF-8 bytes) as text in this machine's byte order; other arrays as they are."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    return array.astype(array.dtype.newbyteorder("=")) if array.dtype.kind == "U" else array
