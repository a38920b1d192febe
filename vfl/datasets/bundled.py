"""Data sets without a file: those that come inside scikit-learn, and made-up images of any number and shape."""

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import interpolate

from vfl.datasets import Data, DataSet, Facts, Mosaic, datasets
from vfl.datasets.columns import encode_all, fit_column
from vfl.errors import UserError
from vfl.partition import Shape
from vfl.seeds import generator

PHOTOGRAPHS = ("china", "flower")


@datasets.register("photos")
class Photos(DataSet):
    """Tiles cut from scikit-learn's two photographs; the label is the photograph. A tile's number gives its place."""

    samples: int | None = Field(120, ge=2, description="tiles in all; the photographs are scaled to make so many")
    tile: int = Field(32, ge=4)

    def load(self) -> Data:
        """Scale each photograph so that its half of the tiles covers it, and cut it up row by row."""
        pictures = photographs()
        samples = self.samples or 120
        counts = [samples - samples // 2, samples // 2]
        tiles: list[Tensor] = []
        labels: list[Tensor] = []
        mosaics: list[Mosaic] = []
        for label, (name, picture, count) in enumerate(zip(PHOTOGRAPHS, pictures, counts, strict=True)):
            rows, columns = _grid(count, picture.shape[1] / picture.shape[0])
            if rows * self.tile > picture.shape[0] or columns * self.tile > picture.shape[1]:
                raise UserError(f"data.samples: {samples} tiles of {self.tile} are more than the photographs have")
            cut_out = _tiles(picture, rows, columns, self.tile)[:count]
            mosaics.append(Mosaic(name, sum(len(cut) for cut in tiles), rows, columns, count))
            tiles.append(cut_out)
            labels.append(torch.full((count,), label))
        data = self._data("image", (torch.cat(tiles), torch.cat(labels)), classes=2)
        return replace(data, mosaics=tuple(mosaics))


@datasets.register("digits")
class Digits(DataSet):
    """Scikit-learn's 8x8 handwritten digits (Alpaydin and Kaynak 1998): 1,500 to train with, 297 to test."""

    def load(self) -> Data:
        """Return the digits in their own order."""
        rows = torch.tensor(np.loadtxt(_carried("data/digits.csv.gz"), delimiter=","))
        x, y = rows[:, :64].float().reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
        return self._data("image", (x[:1500], y[:1500]), (x[1500:], y[1500:]))


@datasets.register("breast_cancer")
class BreastCancer(DataSet):
    """Scikit-learn's medical table of 30 columns (Street et al. 1993), scaled: 469 rows to train with, 100 to test."""

    def load(self) -> Data:
        """Return the rows in their own order."""
        from sklearn.datasets import load_breast_cancer

        source = load_breast_cancer()
        y = torch.tensor(source.target, dtype=torch.int64)
        names = tuple(map(str, source.feature_names))
        columns = tuple(fit_column(name, own, 1) for name, own in zip(names, source.data[:469].T, strict=True))
        train, test = (encode_all(columns, list(rows.T), len(rows)) for rows in (source.data[:469], source.data[469:]))
        data = self._data("table", (train, y[:469]), (test, y[469:]))
        return replace(data, columns=columns, label="diagnosis", class_names=tuple(map(str, source.target_names)))


@datasets.register("diabetes")
class Diabetes(DataSet):
    """Scikit-learn's medical table of 10 columns and a number to predict (Efron et al. 2004): 342 rows, 100 to test."""

    def load(self) -> Data:
        """Return the rows in their own order, in the units of the file."""
        from sklearn.datasets import load_diabetes

        source = load_diabetes(scaled=False)
        names = tuple(map(str, source.feature_names))
        columns = tuple(fit_column(name, own, 1) for name, own in zip(names, source.data[:342].T, strict=True))
        target = fit_column("progression", source.target[:342], 1)
        parts = [
            (encode_all(columns, list(source.data[rows].T), len(source.data[rows])), target.encode(source.target[rows]))
            for rows in (slice(0, 342), slice(342, None))
        ]
        train, test = ((x, y[:, 0]) for x, y in parts)
        data = self._data("table", train, test, classes=1)
        return replace(data, columns=columns, label="progression", target=target)


def photographs() -> list[np.ndarray]:
    """Return the two pictures, height by width by colours."""
    from PIL import Image

    return [np.asarray(Image.open(_carried(f"images/{name}.jpg"))) for name in PHOTOGRAPHS]


def _carried(name: str) -> Path:
    """Return a file of scikit-learn's package without importing it, which would take each process two seconds."""
    found = importlib.util.find_spec("sklearn")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "datasets" / name


def _grid(count: int, aspect: float) -> tuple[int, int]:
    """Return rows and columns for so many tiles: few places left empty, proportions close to the picture's."""

    def cost(rows: int) -> float:
        columns = -(-count // rows)
        return (rows * columns - count) / count + abs(math.log(columns / rows / aspect))

    rows = min(range(1, count + 1), key=cost)
    return rows, -(-count // rows)


def _tiles(picture: np.ndarray, rows: int, columns: int, tile: int) -> Tensor:
    from PIL import Image

    scaled = Image.fromarray(picture).resize((columns * tile, rows * tile), Image.Resampling.LANCZOS)
    pixels = torch.tensor(np.asarray(scaled), dtype=torch.float32).permute(2, 0, 1) / 255
    cut = pixels.reshape(3, rows, tile, columns, tile).permute(1, 3, 0, 2, 4)
    return cut.reshape(rows * columns, 3, tile, tile)


CHUNK = 4096
"""Images made at a time, from a generator of their own: the first images are the same however many are made."""


@datasets.register("synthetic")
class Synthetic(DataSet):
    """Random images with coarse and fine detail on black: for measuring how cost grows with N and M."""

    samples: int | None = Field(400, ge=1)
    test_samples: int | None = Field(0, ge=0)
    shape: tuple[int, int, int] = Field((3, 32, 32), description="channels, height and width of an image")
    classes: int = Field(10, ge=2)

    def load(self) -> Data:
        """Make the images."""
        facts = self.facts()
        train = self._make("train", facts.samples)
        return self._data("image", train, self._make("test", facts.test_samples), classes=self.classes)

    def facts(self) -> Facts:
        """Return what the options say."""
        return Facts(self.samples or 400, self.test_samples or 0, self.shape, self.classes)

    def _make(self, part: str, count: int) -> tuple[Tensor, Tensor]:
        patterns = _octaves(self.classes, self.shape, generator(0, "patterns"))
        y = torch.arange(count) % self.classes
        x = torch.empty(count, *self.shape)
        for number, rows in enumerate(torch.arange(count).split(CHUNK)):
            own = _octaves(CHUNK, self.shape, generator(number, part))[: len(rows)]
            # below the middle is black: half of an image, as in MNIST
            x[rows] = (patterns[y[rows]] / 3 + own).clamp(0, 1)
        return x, y


def _octaves(count: int, shape: Shape, random: torch.Generator) -> Tensor:
    """Return noise about 0 whose detail is weaker the finer it is, as in photographs."""
    total = torch.zeros(count, *shape)
    for size in (2, 4, 8, 16, 32):
        grid = [min(size, side) for side in shape[1:]]
        coarse = torch.randn(count, shape[0], *grid, generator=random)
        total += interpolate(coarse, size=tuple(shape[1:]), mode="bilinear", align_corners=True) / size
    return total
