"""MNIST and CIFAR-10 through torchvision, from files on disk or downloaded when the user asks."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from vfl import limits
from vfl.datasets import Data, DataSet, Facts, data_path, datasets
from vfl.datasets.npz import Npz
from vfl.errors import UserError, missing_extra
from vfl.limits import plain
from vfl.partition import Shape

D = TypeVar("D", Data, Facts)

CLASSES = 10

LARGEST_FILE = 64 << 20
"""Bytes; the largest of the originals has 47 million."""


@contextmanager
def _patience() -> Iterator[None]:
    """Give downloads a deadline: torchvision sets none, so they obey the default of all sockets."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(limits.DOWNLOAD_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


class TorchvisionSet(DataSet):
    """A data set in the folder `path` (or CAFE_DATA), laid out as torchvision does, or in one NumPy archive there."""

    path: Path | None = None
    download: bool = False

    vision_name: ClassVar[str]
    """Of torchvision's class."""
    archive_name: ClassVar[str]
    folder_name: ClassVar[str]
    """Where torchvision puts its files."""
    counts: ClassVar[tuple[int, int]]
    """How many samples there are to train and to test with."""
    shape: ClassVar[Shape]

    def load(self) -> Data:
        """Read torchvision's files, or the archive."""
        archive = self._archive()
        if archive:
            return self._as_known(archive.path, archive.load())
        train, test = self._parts(self.vision_name)
        return self._data("image", _samples(train), _samples(test), classes=CLASSES)

    def facts(self) -> Facts:
        """Return what the archive has; without one, or where it has too few samples, the published numbers.

        `cafe plan` uses them. A run loads the archive, and refuses it if it has too few samples.
        """
        archive, known = self._archive(), self._facts(*self.counts, self.shape, CLASSES)
        if archive is None:
            return known
        there = archive.model_copy(update={"samples": None, "test_samples": None}).facts()
        short = (self.samples or 0) > there.samples or (self.test_samples or 0) > there.test_samples
        return known if short else self._as_known(archive.path, archive.facts())

    @classmethod
    def places(cls) -> tuple[str, ...]:
        """Return torchvision's folder and the archive."""
        return cls.folder_name, cls.archive_name

    def _as_known(self, path: Path, found: D) -> D:
        """Refuse an archive of another data set; the classes are ten, even if some do not occur in it."""
        name = self.archive_name.removesuffix(".npz")
        if found.sample_shape != self.shape:
            there, known = ("x".join(map(str, shape)) for shape in (found.sample_shape, self.shape))
            raise UserError(f"data.path: {path} has samples of {there}, and those of {name} are {known}")
        if found.classes > CLASSES:
            raise UserError(
                f"data.path: {path} has the label {found.classes - 1}, and those of {name} are 0 to {CLASSES - 1}"
            )
        return replace(found, classes=CLASSES)

    def _archive(self) -> Npz | None:
        """Return the archive if it exists, and torchvision's own files neither exist nor are to be downloaded."""
        if self.download or (self.path is None and "CAFE_DATA" not in os.environ):
            return None
        root = data_path(self.path)
        found = root / self.archive_name
        if (root / self.folder_name).exists() or not found.exists():
            return None
        return Npz(path=found, samples=self.samples, test_samples=self.test_samples)

    def _parts(self, name: str) -> tuple[Any, Any]:
        if find_spec("torchvision") is None:
            wanted = f"data: the files of {name} are read by torchvision (an archive {self.archive_name} is not)"
            raise missing_extra(wanted, "it", "vision")
        from vfl import torchvision_ops  # noqa: F401  (makes the next import work beside CPU torch)
        from torchvision import datasets as vision  # isort: skip

        root = data_path(self.path)
        self._check_sizes(root)
        # Old versions kept MNIST as pickles, which torchvision would prefer to open.
        kind = type(name, (getattr(vision, name),), {"_check_legacy_exist": lambda _: False})
        try:
            with _patience():
                train, test = (kind(root, train=part, download=self.download) for part in (True, False))
        except RuntimeError as error:
            raise UserError(
                f"data: {name} is not complete under {root} ({str(error).splitlines()[0]}); point data.path or "
                f"CAFE_DATA at a folder that has it, or {self.archive_name} and no {self.folder_name}, or set "
                f"data.download to true"
            ) from None
        except OSError as error:
            done = f"could not be downloaded to {root}" if self.download else f"cannot be read from {root}"
            raise UserError(f"data: {name} {done}: {error}") from None
        except Exception as error:  # broken files raise errors of many kinds in torchvision
            raise UserError(
                f"data: {name} cannot be read from {root}: its files are not the originals "
                f"({type(error).__name__}: {plain(str(error))}); remove or replace them"
            ) from None
        return train, test

    def _check_sizes(self, root: Path) -> None:
        """Refuse files that torchvision would read whole, and that are larger than any of the originals."""
        for path in (root / self.folder_name).glob("raw/*"):
            if path.stat().st_size > LARGEST_FILE:
                raise UserError(f"data: {path} has {path.stat().st_size} bytes, more than any of the original files")


@datasets.register("mnist")
class Mnist(TorchvisionSet):
    """28x28 handwritten digits (LeCun et al. 1998), from torchvision's files or mnist.npz below CAFE_DATA."""

    vision_name, archive_name, folder_name = "MNIST", "mnist.npz", "MNIST"
    counts, shape = (60_000, 10_000), (1, 28, 28)


@datasets.register("cifar10")
class Cifar10(TorchvisionSet):
    """32x32 colour images of ten classes (Krizhevsky 2009), from torchvision's files or cifar10.npz below CAFE_DATA."""

    vision_name, archive_name, folder_name = "CIFAR10", "cifar10.npz", "cifar-10-batches-py"
    counts, shape = (50_000, 10_000), (3, 32, 32)


def _samples(part: Any) -> tuple[Tensor, Tensor]:
    """Return torchvision's images, grey (N, H, W) or with channels last, and their labels."""
    pixels = torch.as_tensor(part.data).float() / 255
    images = pixels.unsqueeze(1) if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)
    return images, torch.as_tensor(part.targets, dtype=torch.int64)
