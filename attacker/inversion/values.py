"""What values data can have: pixels from 0 to 1, in levels; a table's columns, which are scaled, any around 0."""

import torch
from torch import Tensor

FAR = 1.0
"""Standard deviation of later starts for tables: that of their columns."""


def is_image(x: Tensor) -> bool:
    """Tell images (samples, channels, height, width) from rows of tables (samples, columns)."""
    return x.dim() == 4


def nothing_known(x: Tensor) -> Tensor:
    """Return the middle of what data like x can be: grey, or every column's mean."""
    return torch.full_like(x, 0.5 if is_image(x) else 0.0)


def start_near(x: Tensor, near: float, first: bool) -> float:
    """Return how far from its middle a search starts.

    What h does not tell of a row stays where it started, so that the first start is near the mean.
    """
    return near if first or is_image(x) else FAR


def allowed(x: Tensor) -> Tensor:
    """Return x with pixels in range; a table's columns have none."""
    return x.clamp(0, 1) if is_image(x) else x


def in_levels(x: Tensor, levels: int) -> Tensor | None:
    """Return x rounded to the values that a pixel can have; None for tables, and where any value will do."""
    return (x * (levels - 1)).round() / (levels - 1) if levels and is_image(x) else None


def likeliest_length(x: Tensor) -> Tensor:
    """Return data of which the directions are known alone: as bright as an image can be, or as far off as a row is."""
    flat = x.flatten(1)
    length = flat.abs().amax(dim=1) if is_image(x) else flat.square().mean(dim=1).sqrt()
    return x / length.view(-1, *[1] * (x.dim() - 1))
