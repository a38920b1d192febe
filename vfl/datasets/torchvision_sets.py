"""MNIST and CIFAR-10 through torchvision, from files on disk or downloaded when the user asks."""

import os
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from vfl.datasets import Data, DataSet, Facts, data_path, datasets
from vfl.datasets.npz import Npz
from vfl.errors import UserError


class TorchvisionSet(DataSet):
    """A data set in the folder `path` (or CAFE_DATA), laid out as torchvision does, or in one NumPy archive there."""

    path: Path | None = None
    download: bool = False

    archive_name: ClassVar[str]
    folder_name: ClassVar[str]
    """Where torchvision puts its files."""

    def load(self) -> Data:
        """Read torchvision's files, or the archive."""
        archive = self._archive()
        return archive.load() if archive else self._load()

    def facts(self) -> Facts:
        """Return what the archive has, or what everybody knows: also where the archive has less than is asked for.

        That is for plans; a run loads the archive, and says how many samples there are.
        """
        archive = self._archive()
        if archive is None:
            return self._known()
        there = archive.model_copy(update={"samples": None, "test_samples": None}).facts()
        short = (self.samples or 0) > there.samples or (self.test_samples or 0) > there.test_samples
        return self._known() if short else archive.facts()

    def _load(self) -> Data:
        raise NotImplementedError

    def _known(self) -> Facts:
        raise NotImplementedError

    def _archive(self) -> Npz | None:
        """Return the archive, where it is and torchvision's own files are neither there nor asked for."""
        if self.download or (self.path is None and "CAFE_DATA" not in os.environ):
            return None
        root = data_path(self.path)
        found = root / self.archive_name
        if (root / self.folder_name).exists() or not found.exists():
            return None
        return Npz(path=found, samples=self.samples, test_samples=self.test_samples)

    def _parts(self, name: str) -> tuple[Any, Any]:
        from vfl import torchvision_ops  # noqa: F401  (makes the next import work beside CPU torch)
        from torchvision import datasets as vision  # isort: skip

        root = data_path(self.path)
        try:
            train, test = (getattr(vision, name)(root, train=part, download=self.download) for part in (True, False))
        except RuntimeError as error:
            raise UserError(
                f"data: {name} is not complete under {root} ({str(error).splitlines()[0]}); point data.path or "
                f"CAFE_DATA at a folder that has it, or set data.download to true"
            ) from None
        except OSError as error:
            raise UserError(f"data: {name} could not be downloaded to {root}: {error}") from None
        return train, test


@datasets.register("mnist")
class Mnist(TorchvisionSet):
    """28x28 handwritten digits (LeCun et al. 1998)."""

    archive_name, folder_name = "mnist.npz", "MNIST"

    def _load(self) -> Data:
        train, test = self._parts("MNIST")
        return self._data("image", _mnist(train), _mnist(test), classes=10)

    def _known(self) -> Facts:
        return self._facts(60_000, 10_000, (1, 28, 28), 10)


@datasets.register("cifar10")
class Cifar10(TorchvisionSet):
    """32x32 colour images of ten classes (Krizhevsky 2009)."""

    archive_name, folder_name = "cifar10.npz", "cifar-10-batches-py"

    def _load(self) -> Data:
        train, test = self._parts("CIFAR10")
        return self._data("image", _cifar(train), _cifar(test), classes=10)

    def _known(self) -> Facts:
        return self._facts(50_000, 10_000, (3, 32, 32), 10)


def _mnist(part: Any) -> tuple[Tensor, Tensor]:
    return part.data.unsqueeze(1).float() / 255, part.targets.to(torch.int64)


def _cifar(part: Any) -> tuple[Tensor, Tensor]:
    pixels = torch.tensor(part.data, dtype=torch.float32).permute(0, 3, 1, 2) / 255
    return pixels, torch.tensor(part.targets, dtype=torch.int64)
