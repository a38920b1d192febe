"""Data sets by name: whole samples with labels, as the simulation divides them among the workers."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from vfl.datasets.columns import Column
from vfl.errors import UserError
from vfl.folder.summary import Tables
from vfl.partition import Shape
from vfl.registry import Plugin, Registry


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
    class_names: tuple[str, ...] = ()
    tables: Tables | None = None
    """The files that the samples come from; their rows may have been joined, and some left out."""

    @property
    def sample_shape(self) -> Shape:
        """Return the shape of one sample."""
        return tuple(self.x.shape[1:])


@dataclass(frozen=True)
class Facts:
    """A data set without its samples: enough to divide it and to plan a run on it."""

    samples: int
    test_samples: int
    sample_shape: Shape
    classes: int
    columns: tuple[Column, ...] = ()
    groups: tuple[int, ...] | None = None

    @classmethod
    def of(cls, data: Data) -> "Facts":
        """Return the facts of data that are loaded."""
        tested = 0 if data.x_test is None else len(data.x_test)
        return cls(len(data.x), tested, data.sample_shape, data.classes, data.columns, data.groups)


class DataSet(Plugin):
    """A data set plug-in. `samples` and `test_samples` take the first so many; left out, all of them."""

    samples: int | None = Field(None, ge=1)
    test_samples: int | None = Field(None, ge=0)

    def with_labels_at(self, worker: int | None) -> "DataSet":  # noqa: ARG002
        """Return the data set of a federation whose labels this worker has; matters where each party has a file."""
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
        if everything.min() < 0:
            raise UserError("data: labels must be numbers from 0 up")
        if x_test is not None and not len(x_test):
            x_test, y_test = None, None
        return Data(
            kind,
            x.contiguous(),
            y,
            classes or int(everything.max()) + 1,
            (ids or tuple(map(str, range(len(train[0])))))[: len(x)],
            x_test=x_test,
            y_test=y_test,
        )


datasets: Registry[DataSet] = Registry(
    "data",
    DataSet,
    "cafe.datasets",
    [
        "vfl.datasets.archives",
        "vfl.datasets.bundled",
        "vfl.datasets.images",
        "vfl.datasets.synthetic",
        "vfl.datasets.tables",
        "vfl.datasets.torchvision_sets",
    ],
)


def data_path(path: Path | None) -> Path:
    """Find a path from the config: as it stands, or else below the folder that CAFE_DATA names."""
    root = os.environ.get("CAFE_DATA")
    if path is None:
        if root is None:
            raise UserError("data.path: is missing; give it, or set the environment variable CAFE_DATA to the folder")
        return Path(root)
    if not path.is_absolute() and not path.exists() and root is not None:
        return Path(root) / path
    return path


def _first(x: Tensor, y: Tensor, count: int | None, key: str) -> tuple[Tensor, Tensor]:
    _check_count(count, len(x), key)
    return x[:count], y[:count]


def _check_count(count: int | None, there: int, key: str) -> None:
    if count is not None and count > there:
        raise UserError(f"{key}: {count} asked for, the data set has {there}")
