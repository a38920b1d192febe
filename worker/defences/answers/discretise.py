"""Answers in few values."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from vfl.config.places import Place
from worker.defences import Defence, Swapped, defences

WIDTH = 2.0
"""Deviations to either side of the mean that the values span."""


@defences.register("discretise")
class Discretise(Defence):
    """Gradient discretisation (DiscreteSGD, Fu et al. 2022, section 7): each entry becomes the nearest of few values.

    They are equally spaced from two deviations below the mean of all entries of the batch to two above it.
    """

    places: ClassVar[frozenset[Place]] = frozenset({"answers"})
    values: int = Field(6, ge=2, le=65536, description="how many different values there are")

    def exchange(self, tensor: Tensor, swapped: Swapped) -> Tensor:  # noqa: ARG002
        """Return the answers in few values."""
        spread = WIDTH * tensor.std(unbiased=False)
        if not bool(spread > 0):
            return tensor
        low, step = tensor.mean() - spread, 2 * spread / (self.values - 1)
        return low + step * torch.round((tensor - low) / step).clamp(0, self.values - 1)
