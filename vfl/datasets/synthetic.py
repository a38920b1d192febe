"""Made-up images: as many as wanted, of any shape, without a file."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import interpolate

from vfl.datasets import Data, DataSet, Facts, datasets
from vfl.partition import Shape
from vfl.seeds import generator

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
