"""NumPy archives with samples and labels in arrays of fixed names."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vfl.datasets import Data, DataSet, Facts, data_path
from vfl.datasets.columns import LONGEST, Values, as_words, encode_all, fit_column, too_long
from vfl.datasets.tables.words import Name, normal
from vfl.errors import UserError
from vfl.files.archive import ArchiveError, read_archive, read_shapes
from vfl.limits import CLASSES, plain
from vfl.partition import Shape

T = TypeVar("T")

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
        x, y = arrays[f"x{prefix}"], _labels(arrays[f"y{prefix}"], path)
        _check(x, y, path)
        tested = "x_test" in arrays and "y_test" in arrays
        y_test = _labels(arrays["y_test"], path) if tested else None
        if y_test is not None:
            _check(arrays["x_test"], y_test, path)
            if arrays["x_test"].shape[1:] != x.shape[1:]:
                raise UserError(f"data.path: {path} has test samples of another shape than its training samples")
        ids = _names(arrays["ids"], "ids", path, count=len(x), what="samples") if "ids" in arrays else None
        if x.ndim == 2:
            named = arrays.get("feature_names", np.arange(x.shape[1]))
            header = _names(named, "feature_names", path, count=x.shape[1], what="columns")
            test = (arrays["x_test"], y_test) if y_test is not None else None
            return self._table((x, y), test, header=header, ids=ids)
        if self.columns is not None or self.categorical:
            raise UserError(f"data.columns, data.categorical: {path} holds images, and these are for tables")
        images = _images(x, path)
        held_out = (_images(arrays["x_test"], path), y_test) if y_test is not None else None
        return self._data("image", (images, y), held_out, ids=ids)

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

    def _table(
        self,
        train: tuple[np.ndarray, Tensor],
        test: tuple[np.ndarray, Tensor] | None,
        *,
        header: tuple[str, ...],
        ids: tuple[str, ...] | None,
    ) -> Data:
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


def _check(x: np.ndarray, y: Tensor, path: Path) -> None:
    if x.dtype.kind not in "iuf" or x.dtype.itemsize > 8 or x.ndim < 2 or not x.size:
        raise UserError(
            f"data.path: {path} must hold numbers, a row or image a sample, got {x.dtype} of shape {x.shape}"
        )
    if len(x) != len(y):
        raise UserError(f"data.path: {path} has {len(x)} samples and {len(y)} labels")
    if not np.isfinite(x).all():
        raise UserError(f"data.path: {path} has missing or infinite values; fill or drop them first")


def _widened(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _numbers(column: np.ndarray, name: str) -> np.ndarray:
    if column.dtype.kind in "iu" and ((column > LONGEST) | (column < -LONGEST)).any():
        raise too_long(f"column {name!r}")
    return column.astype(np.float64)


def _labels(y: np.ndarray, path: Path) -> Tensor:
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise UserError(
            f"data.path: labels in {path} must be one whole number a sample, got {y.dtype} of shape {y.shape}"
        )
    if y.size and y.min() < 0:
        raise UserError(f"data.path: {path} has the label {y.min()}; labels must be numbers from 0 up")
    if y.size and y.max() >= CLASSES:
        raise UserError(f"data.path: {path} has the label {y.max()}; labels are numbers below {CLASSES}")
    return torch.tensor(y.astype(np.int64))


def _names(array: np.ndarray, key: str, path: Path, *, count: int, what: str) -> tuple[str, ...]:
    """Return an array of names, one for each sample or column and no two alike."""
    if array.ndim != 1 or array.dtype.kind not in "USiu":
        raise UserError(
            f"data.path: {key} in {path} must be a row of words or whole numbers, got {array.dtype} of shape "
            f"{array.shape}"
        )
    if len(array) != count:
        raise UserError(f"data.path: {path} has {count} {what} and {len(array)} {key}; it must have one for each")
    names = tuple(normal(one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one)) for one in array)
    unwritable = [name for name in names if not _is_text(name)]
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


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # halves of surrogate pairs, which NumPy's strings may hold
        return False
    return True


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
