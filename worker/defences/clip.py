"""Clipping: the whole upload is no longer than a limit. And how long gradients are."""

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from vfl.config.places import PLACES, Place
from vfl.observation import Tensors
from worker.defences import Defence, Played, Swapped, defences


@defences.register("clip")
class Clip(Defence):
    """Shortens a worker's whole upload to an L2 norm of at most `norm` (the clipping of Abadi et al. 2016, no noise).

    All tensors are one vector here, the top model's among them: the upload keeps its direction.
    """

    norm: float = Field(3.0, gt=0, description="the largest L2 norm of an upload, or of a sample's output or answer")
    places: ClassVar[frozenset[Place]] = frozenset(PLACES)

    def apply(self, gradients: Tensors, played: Played) -> Tensors:  # noqa: ARG002
        """Return the gradients, all multiplied by one factor of at most 1."""
        return clipped(gradients, self.norm)

    def exchange(self, tensor: Tensor, swapped: Swapped) -> Tensor:  # noqa: ARG002
        """Return outputs or answers, each shortened by itself."""
        lengths: Tensor = torch.linalg.vector_norm(tensor.detach(), dim=1, keepdim=True).clamp(min=1e-30)
        return tensor * (self.norm / lengths).clamp(max=1)


def norm(tensor: Tensor) -> float:
    """Return the L2 norm of one tensor, in float64: squares of small float32 numbers vanish."""
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64))


def rms(tensor: Tensor) -> float:
    """Return the root of the mean square of a tensor's entries."""
    return norm(tensor) / math.sqrt(max(1, tensor.numel()))


def clipped(gradients: Tensors, limit: float) -> dict[str, Tensor]:
    """Return the gradients, shortened together, as one long vector, to an L2 norm of at most `limit`."""
    length = math.hypot(*map(norm, gradients.values()))
    if length <= limit:
        return dict(gradients)
    return {name: tensor * (limit / length) for name, tensor in gradients.items()}
