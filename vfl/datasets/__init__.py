"""Data sets by name: whole samples with labels, as the simulation divides them among the workers."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from vfl.datasets.columns import Column
from vfl.errors import UserError
from vfl.folder.summary import Tables
from vfl.limits import CLASSES, plain
from vfl.partition import Shape
from vfl.registry import Plugin, Registry
from vfl.shipped import find_shipped


@dataclass(frozen=True)
class Mosaic:
    """A picture that was cut into tiles: sample `first + i` is tile i, row by row."""

    name: str
    first: int
    rows: int
    columns: int
    tiles: int


@dataclass(frozen=True)
class Data:
    """Samples in a fixed order: images (N, channels, height, width) in [0, 1], or table rows (N, columns)."""

    kind: Literal["image", "table"]
    x: Tensor
    y: Tensor
    classes: int
    ids: tuple[str, ...]
    x_test: Tensor | None = None
    y_test: Tensor | None = None
    columns: tuple[Column, ...] = ()
    mosaics: tuple[Mosaic, ...] = ()
    groups: tuple[int, ...] | None = None
    """How many of the columns each worker holds, in order, where the data set decides that."""
    label: str = "label"
    target: Column | None = None
    """The label's own units, where it is a number: `y` is scaled as any column is, and `classes` is 1."""
    class_names: tuple[str, ...] = ()
    tables: Tables | None = None
    """The files that the samples come from; their rows may have been joined, and some left out."""

    @property
    def sample_shape(self) -> Shape:
        """Return the shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return a sentence on each thing in a table that may be a mistake."""
        return tuple(self.tables.doubts) if self.tables else ()


@dataclass(frozen=True)
class Facts:
    """A data set without its samples: enough to divide it and to plan a run on it."""

    samples: int
    test_samples: int
    sample_shape: Shape
    classes: int
    columns: tuple[Column, ...] = ()
    groups: tuple[int, ...] | None = None
    doubts: tuple[str, ...] = ()
    """A sentence on each thing that may be a mistake."""

    @classmethod
    def of(cls, data: Data) -> "Facts":
        """Return the facts of data that are loaded."""
        tested = 0 if data.x_test is None else len(data.x_test)
        return cls(len(data.x), tested, data.sample_shape, data.classes, data.columns, data.groups, data.doubts)


class DataSet(Plugin):
    """A data set plug-in. `samples` and `test_samples` take the first so many; left out, all of them."""

    samples: int | None = Field(None, ge=1)
    test_samples: int | None = Field(None, ge=0)

    def with_labels_at(self, worker: int | None) -> "DataSet":  # noqa: ARG002
        """Return the data set of a federation whose labels this worker has; matters where each party has a file."""
        return self

    def predicting_numbers(self) -> "DataSet":
        """Return the data set of a run that predicts a number; one whose label may be either overrides this."""
        return self

    def load(self) -> Data:
        """Return the data."""
        raise NotImplementedError

    def facts(self) -> Facts:
        """Return the facts; a data set that knows them without loading its samples overrides this."""
        return Facts.of(self.load())

    @classmethod
    def places(cls) -> tuple[str, ...]:
        """Return where it is looked for below CAFE_DATA if the config names no path; the first that exists is read."""
        path = cls.model_fields["path"].get_default() if "path" in cls.model_fields else None
        return (str(path),) if isinstance(path, Path) else ()

    def _facts(self, samples: int, test_samples: int, shape: Shape, classes: int) -> Facts:
        """Return facts with the numbers of samples that the config asks for, checked as `_data` does."""
        asked = {"data.samples": (self.samples, samples), "data.test_samples": (self.test_samples, test_samples)}
        for key, (count, there) in asked.items():
            _check_count(count, there, key)
        train, test = (there if count is None else count for count, there in asked.values())
        return Facts(train, test, shape, classes)

    def _data(
        self,
        kind: Literal["image", "table"],
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor] | None = None,
        *,
        ids: tuple[str, ...] | None = None,
        classes: int | None = None,
    ) -> Data:
        """Cut train and test samples to the numbers asked for, and check them."""
        x, y = _first(*train, self.samples, "data.samples")
        x_test, y_test = _first(*test, self.test_samples, "data.test_samples") if test else (None, None)
        if test is None and self.test_samples:
            raise UserError("data.test_samples: this data set has no test samples")
        everything = train[1] if test is None else torch.cat([train[1], test[1]])
        if not everything.is_floating_point() and everything.min() < 0:
            raise UserError("data: labels must be numbers from 0 up")
        if x_test is not None and not len(x_test):
            x_test, y_test = None, None
        ids = (ids or tuple(map(str, range(len(train[0])))))[: len(x)]
        return Data(kind, x.contiguous(), y, classes or int(everything.max()) + 1, ids, x_test, y_test)


datasets: Registry[DataSet] = Registry(
    "data",
    DataSet,
    "cafe.datasets",
    [f"vfl.datasets.{name}" for name in ("npz", "bundled", "images", "tables", "torchvision_sets", "elsewhere")],
)


def data_path(path: Path | None) -> Path:
    """Find a path from the config: as it stands, below the folder that CAFE_DATA names, or among what we ship."""
    root = os.environ.get("CAFE_DATA")
    if path is None:
        if root is None:
            raise UserError("data.path: is missing; give it, or set the environment variable CAFE_DATA to the folder")
        return Path(root)
    below = path if root is None else Path(root) / path
    if path.exists() or below.exists():
        return path if path.exists() else below
    ours = find_shipped(path)
    return ours if ours.exists() else below


def _first(x: Tensor, y: Tensor, count: int | None, key: str) -> tuple[Tensor, Tensor]:
    _check_count(count, len(x), key)
    return x[:count], y[:count]


def _check_count(count: int | None, there: int, key: str) -> None:
    if count is not None and count > there:
        raise UserError(f"{key}: {count} asked for, the data set has {there}")


def check_data(data: object, name: str) -> Data:
    """Return the data if their parts fit each other; else raise an error that names the plug-in and the problem."""
    if not isinstance(data, Data):
        raise UserError(f"data.name: load() of {name} returned {type(data).__name__}, expected a vfl.datasets.Data")
    problem = next(_problems(data), None)
    if problem:
        raise UserError(f"data.name: {name} loaded data that cannot be used: {plain(problem)}; correct its load()")
    check_classes(data)
    return data


def check_classes(data: Data) -> None:
    """Refuse several training samples that are all of one class."""
    if data.y.is_floating_point():
        if len(data.y) > 1 and bool((data.y == data.y[0]).all()):
            raise UserError("data: the label is the same number in all rows to train with; there is nothing to learn")
        return
    count, first = len(data.y), int(data.y[0])
    if count > 1 and bool((data.y == first).all()):
        called = repr(data.class_names[first]) if data.class_names else first
        raise UserError(
            f"data: all {count} samples to train with are of the class {called}; there is nothing to learn: mix them, "
            f"or change data.samples"
        )


def check_facts_of(facts: object, name: str) -> Facts:
    """Return the facts if they are `Facts`."""
    if not isinstance(facts, Facts):
        raise UserError(f"data.name: facts() of {name} returned {type(facts).__name__}, expected a vfl.datasets.Facts")
    return facts


def _problems(data: Data) -> Iterator[str]:
    """Yield what is wrong; only the first is safe to ask for, as later checks rely on the earlier ones."""
    if data.kind not in ("image", "table"):
        yield f"kind is {data.kind!r}, expected 'image' or 'table'"
    if type(data.classes) is not int or not 0 <= data.classes <= CLASSES:
        yield f"classes is {data.classes!r}, expected a whole number up to {CLASSES}"
    yield from _pair_problems(data, "")
    if (data.x_test is None) != (data.y_test is None):
        yield "of x_test and y_test one is None; both are there, or neither is"
    if data.x_test is not None:
        yield from _pair_problems(data, "_test")
        if data.x_test.shape[1:] != data.x.shape[1:]:
            yield f"x_test has samples of shape {tuple(data.x_test.shape[1:])}, x of {data.sample_shape}"
    if not isinstance(data.ids, tuple) or not all(isinstance(one, str) for one in data.ids):
        yield "ids is not a tuple of texts"
    if len(data.ids) != len(data.x):
        yield f"there are {len(data.x)} samples and {len(data.ids)} ids"
    if len(set(data.ids)) < len(data.ids):
        yield "two samples have the same id"
    width = sum(column.width for column in data.columns)
    if data.columns and (width,) != data.sample_shape:
        yield f"its columns make {width} features, and samples have the shape {data.sample_shape}"
    if data.groups is not None and sum(data.groups) != len(data.columns):
        yield f"groups divides {sum(data.groups)} columns, and there are {len(data.columns)}"
    if data.class_names and len(data.class_names) != data.classes:
        yield f"there are {data.classes} classes and {len(data.class_names)} class_names"


def _pair_problems(data: Data, part: Literal["", "_test"]) -> Iterator[str]:
    """Yield what is wrong with the samples to train (or to test) with and their labels."""
    of_x, of_y = f"x{part}", f"y{part}"
    x, y = getattr(data, of_x), getattr(data, of_y)
    shape = "(N, channels, height, width)" if data.kind == "image" else "(N, columns)"
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        yield f"{of_x} is of the type {type(x).__name__} and {of_y} {type(y).__name__}, expected tensors"
        return
    if x.dim() != (4 if data.kind == "image" else 2) or not x.numel() or x.dtype != torch.float32:
        yield f"{of_x} is {x.dtype} of shape {tuple(x.shape)}, expected torch.float32 of shape {shape}"
    if not bool(torch.isfinite(x).all()):
        yield f"{of_x} has missing or infinite values"
    if data.kind == "image" and not 0 <= float(x.min()) <= float(x.max()) <= 1:
        yield f"{of_x} has pixels from {float(x.min()):g} to {float(x.max()):g}, expected 0 to 1"
    if y.dtype == torch.float32 and y.shape == x.shape[:1]:  # a number to predict
        if data.classes != 1 or not bool(torch.isfinite(y).all()):
            yield f"{of_y} is torch.float32, numbers to predict: classes must be 1 then, and all of them finite"
        return
    if y.dtype != torch.int64 or y.shape != x.shape[:1]:
        yield f"{of_y} is {y.dtype} of shape {tuple(y.shape)}, expected torch.int64 of shape ({len(x)},)"
    if not 0 <= int(y.min()) <= int(y.max()) < data.classes:
        yield f"{of_y} has labels from {int(y.min())} to {int(y.max())}, and classes is {data.classes}"
