"""NumPy archives: samples and labels in arrays of fixed names, or a table whose columns are arrays; some by name."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from vfl.datasets import Data, DataSet, Facts, data_path, datasets
from vfl.datasets.columns import LONGEST, Values, as_words, encode_all, fit_column, too_long
from vfl.datasets.tables import TableSet
from vfl.datasets.tables.file import Name, TableFile, normal
from vfl.datasets.tables.formats import NpzFile
from vfl.errors import UserError
from vfl.files.archive import ArchiveError, read_archive, read_shapes
from vfl.limits import CLASSES, plain
from vfl.partition import Shape

T = TypeVar("T")
Rows = tuple[np.ndarray, Tensor]
"""Rows of a table, and their labels."""

ARRAYS = ("x", "y", "x_train", "y_train", "x_test", "y_test", "ids", "feature_names")
"""The arrays of an archive that are read; others are ignored."""


class Npz(DataSet):
    """A file with x_train, y_train and, where present, x_test, y_test (or x, y): images or table rows."""

    path: Path
    columns: tuple[tuple[Name, ...], ...] | None = Field(
        None, description="tables: a list of columns for each worker, by their feature_names"
    )
    categorical: tuple[Name, ...] = Field((), description="tables: columns whose numbers are names of categories")
    most_categories: int = Field(100, ge=1, description="the most different values that such a column may hold")

    def load(self) -> Data:
        """Read the file: uint8 images become [0, 1], table columns are standardised."""
        path = data_path(self.path)
        arrays = _read(path)
        prefix = "_train" if "x_train" in arrays else ""
        for key in (f"x{prefix}", f"y{prefix}"):
            if key not in arrays:
                raise UserError(f"data.path: {path} has no array {key}; it has {', '.join(sorted(arrays)) or 'none'}")
        x, y = _checked(arrays[f"x{prefix}"], arrays[f"y{prefix}"], path)
        test = None
        if "x_test" in arrays and "y_test" in arrays:
            test = _checked(arrays["x_test"], arrays["y_test"], path)
            if test[0].shape[1:] != x.shape[1:]:
                raise UserError(f"data.path: {path} has test samples of another shape than its training samples")
        ids = _names(arrays["ids"], "ids", path, count=len(x), what="samples") if "ids" in arrays else None
        if x.ndim == 2:
            named = arrays.get("feature_names", np.arange(x.shape[1]))
            header = _names(named, "feature_names", path, count=x.shape[1], what="columns")
            return self._table((x, y), test, header=header, ids=ids)
        if self.columns is not None or self.categorical:
            raise UserError(f"data.columns, data.categorical: {path} holds images, and these are for tables")
        images = _images(x, path)
        return self._data("image", (images, y), (_images(test[0], path), test[1]) if test else None, ids=ids)

    def facts(self) -> Facts:
        """Read only labels and shapes of images; a table is read whole, as its values decide its features."""
        path = data_path(self.path)
        shapes = _read_or_say(path, lambda: read_shapes(path, ARRAYS))
        prefix = "_train" if "x_train" in shapes else ""
        x = shapes.get(f"x{prefix}", ())
        if len(x) not in (3, 4) or f"y{prefix}" not in shapes:
            return super().facts()  # a table, or a broken file, which loading will refuse with its reason
        labels = [_labels(y, path) for y in _read(path, (f"y{prefix}", "y_test")).values()]
        tested = shapes["x_test"][0] if {"x_test", "y_test"} <= shapes.keys() else 0
        return self._facts(x[0], tested, _image_shape(x, path), int(torch.cat(labels).max()) + 1)

    def _table(self, train: Rows, test: Rows | None, *, header: tuple[str, ...], ids: tuple[str, ...] | None) -> Data:
        """Scale the columns by their values in the training rows that are used."""
        x, y = train
        names = header if self.columns is None else tuple(name for group in self.columns for name in group)
        for key, wanted in (("data.columns", names), ("data.categorical", self.categorical)):
            lacking = [name for name in wanted if name not in header]
            if lacking:
                raise UserError(f"{key}: there is no column {lacking[0]!r}; the columns are {plain(', '.join(header))}")
        if len(set(names)) < len(names):
            raise UserError(f"data.columns: {max(names, key=names.count)!r} is held by more than one worker")

        if test is not None and test[0].dtype != x.dtype:  # so that a category has the same name in both
            x, test = _widened(x), (_widened(test[0]), test[1])

        def read(rows: np.ndarray) -> list[Values]:
            own = {name: rows[:, header.index(name)] for name in names}
            return [as_words(v) if name in self.categorical else _numbers(v, name) for name, v in own.items()]

        columns = tuple(
            fit_column(name, own, self.most_categories)
            for name, own in zip(names, read(x[: self.samples]), strict=True)
        )
        held_out = None if test is None else (encode_all(columns, read(test[0]), len(test[0])), test[1])
        data = self._data("table", (encode_all(columns, read(x), len(x)), y), held_out, ids=ids)
        groups = None if self.columns is None else tuple(map(len, self.columns))
        return replace(data, columns=columns, groups=groups)


def _read(path: Path, wanted: Collection[str] = ARRAYS) -> dict[str, np.ndarray]:
    return _read_or_say(path, lambda: read_archive(path, wanted))


def _read_or_say(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except FileNotFoundError:
        raise UserError(
            f"data.path: there is no file {path}; give its path, or set CAFE_DATA to the folder that has it"
        ) from None
    except (OSError, ArchiveError) as error:
        raise UserError(
            f"data.path: {path} cannot be read as an .npz archive without pickles: {plain(str(error))}"
        ) from None


def _checked(x: np.ndarray, labels: np.ndarray, path: Path) -> Rows:
    """Return samples and their labels, if they fit each other."""
    y = _labels(labels, path)
    if x.dtype.kind not in "iuf" or x.dtype.itemsize > 8 or x.ndim < 2 or not x.size:
        raise UserError(f"data.path: {path} must hold numbers, a row or image a sample, got {_described(x)}")
    if len(x) != len(y):
        raise UserError(f"data.path: {path} has {len(x)} samples and {len(y)} labels")
    if not np.isfinite(x).all():
        raise UserError(f"data.path: {path} has missing or infinite values; fill or drop them first")
    return x, y


def _described(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _widened(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _numbers(column: np.ndarray, name: str) -> np.ndarray:
    if column.dtype.kind in "iu" and ((column > LONGEST) | (column < -LONGEST)).any():
        raise too_long(f"column {name!r}")
    return column.astype(np.float64)


def _labels(y: np.ndarray, path: Path) -> Tensor:
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise UserError(f"data.path: labels in {path} must be one whole number a sample, got {_described(y)}")
    if y.size and y.min() < 0:
        raise UserError(f"data.path: {path} has the label {y.min()}; labels must be numbers from 0 up")
    if y.size and y.max() >= CLASSES:
        raise UserError(f"data.path: {path} has the label {y.max()}; labels are numbers below {CLASSES}")
    return torch.tensor(y.astype(np.int64))


def _names(array: np.ndarray, key: str, path: Path, *, count: int, what: str) -> tuple[str, ...]:
    """Return an array of names, one for each sample or column and no two alike."""
    if array.ndim != 1 or array.dtype.kind not in "USiu":
        raise UserError(f"data.path: {key} in {path} must be a row of words or whole numbers, got {_described(array)}")
    if len(array) != count:
        raise UserError(f"data.path: {path} has {count} {what} and {len(array)} {key}; it must have one for each")
    names = tuple(normal(one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one)) for one in array)
    # Halves of surrogate pairs, which NumPy's strings may hold, cannot be encoded.
    unwritable = [name for name in names if name != name.encode("utf-8", "ignore").decode()]
    if unwritable:
        raise UserError(f"data.path: {key} in {path} has {unwritable[0]!r}, which is no text in UTF-8; give it a name")
    if "" in names:
        raise UserError(f"data.path: {key} in {path} has an empty name, number {names.index('') + 1}; give it one")
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise UserError(
            f"data.path: {key} in {path} has {len(repeated)} names more than once ({repeated[0]!r} for one)"
        )
    return names


def _images(x: np.ndarray, path: Path) -> Tensor:
    """Return (N, channels, height, width) in [0, 1] from gray (N, H, W), or colour with channels last or first."""
    pixels = torch.tensor(x, dtype=torch.float32)
    if x.dtype == np.uint8:
        pixels /= 255
    elif pixels.numel() and not (float(pixels.min()) >= 0 and float(pixels.max()) <= 1):
        raise UserError(f"data.path: images in {path} must be uint8, or floats from 0 to 1")
    shape = _image_shape(x.shape, path)
    if pixels.dim() == 3:
        return pixels.unsqueeze(1)
    return pixels if tuple(x.shape[1:]) == shape else pixels.permute(0, 3, 1, 2).contiguous()


def _image_shape(shape: tuple[int, ...], path: Path) -> Shape:
    """Return (channels, height, width) of an array of images, whose channels come last, first or not at all."""
    if len(shape) == 3:
        return (1, *shape[1:])
    if len(shape) == 4 and shape[3] in (1, 3):
        return (shape[3], shape[1], shape[2])
    if len(shape) == 4 and shape[1] in (1, 3):
        return shape[1:]
    raise UserError(f"data.path: images in {path} have shape {shape}, expected (N,H,W), (N,H,W,C) or (N,C,H,W)")


@datasets.register("npz")
class Archive(TableSet):
    """Images or table rows in x_train, y_train (or x, y); with `label` a table whose columns are arrays by name."""

    label: Name = Field("", description="the column to predict; without it y_train or y holds the labels")

    @model_validator(mode="after")
    def _label_for_tables(self) -> "Archive":
        named = [key for key in ("files", "id", "missing", "missing_values") if key in self.model_fields_set]
        if named and not self.label:
            raise ValueError(f"{named[0]} is for tables whose columns are arrays: give label, the one to predict, too")
        return self

    def load(self) -> Data:
        """Read a table as CSV and Parquet are read, or arrays of fixed names."""
        return super().load() if self.label else self._arrays().load()

    def facts(self) -> Facts:
        """Read no more of images than their shapes."""
        return super().facts() if self.label else self._arrays().facts()

    def _arrays(self) -> Npz:
        return Npz.model_validate({key: getattr(self, key) for key in Npz.model_fields})

    def _open(self, path: Path, key: str) -> TableFile:
        return NpzFile(path, self.missing_values, key)


@datasets.register("linnaeus5")
class Linnaeus5(Npz):
    """Colour images of five classes (Chaladze and Kalatozishvili 2017), from linnaeus5.npz."""

    path: Path = Path("linnaeus5.npz")


@datasets.register("yale")
class Yale(Npz):
    """32x32 faces of 15 people (Georghiades et al. 1997), from yale32.npz."""

    path: Path = Path("yale32.npz")


@datasets.register("credit")
class Credit(Npz):
    """Table of credit card clients and who defaulted (Yeh and Lien 2009), from credit_default.npz."""

    path: Path = Path("credit_default.npz")
