"""A model: a plain function is enough. Its first parameter is the shape of a slice, the others are options."""

import math

from torch import Tensor, nn


def maxout(shape: tuple[int, ...], width: int = 16, pieces: int = 2) -> nn.Module:
    """Goodfellow et al. 2013 (Maxout networks): the largest of a few linear pieces, then a fully connected layer."""
    return nn.Sequential(nn.Flatten(), Maxout(math.prod(shape), width, pieces), nn.Linear(width, 4))


class Maxout(nn.Module):
    """A fully connected layer that puts out the largest of a few values for each unit."""

    def __init__(self, features: int, width: int, pieces: int) -> None:
        super().__init__()
        self.fc = nn.Linear(features, width * pieces)
        self.pieces = pieces

    def forward(self, x: Tensor) -> Tensor:
        """Return the largest pieces."""
        return self.fc(x).unflatten(1, (-1, self.pieces)).amax(2)
