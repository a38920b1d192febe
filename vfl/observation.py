"""What the coordinator sees, and all that an attack is ever shown."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from vfl.partition import Box
from vfl.registry import PluginSection

Tensors = Mapping[str, Tensor]


BOTTOM, TOP = "bottom.", "top."
"""How a tensor's name on the wire tells the worker's bottom model from the label holder's top model."""


def with_prefix(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors of one model under their names on the wire."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors of one model among those on the wire, under their own names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class ModelTensors:
    """One tensor per parameter: each worker's bottom model, and the top model."""

    bottoms: tuple[Tensors, ...]
    top: Tensors


@dataclass(frozen=True)
class Observation:
    """One round as it reached the coordinator."""

    round: int
    indices: Tensor
    version: int
    parameters: ModelTensors
    gradients: ModelTensors
    """A worker that withheld its upload has no tensors here."""

    @property
    def complete(self) -> bool:
        """Whether all workers uploaded; attacks are shown complete rounds only."""
        return all((*self.gradients.bottoms, self.gradients.top))


@dataclass(frozen=True)
class Setting:
    """What the coordinator knows before the first round: the model, the slices' places, its own schedule."""

    model: PluginSection
    boxes: tuple[Box, ...]
    classes: int
    samples: int
    batch_size: int
    schedule: str
    rounds: int
    frozen: bool
    seed: int
    device: str = "auto"
    labels: tuple[int, ...] | None = None
    """Every sample's class, where the coordinator holds the labels itself; None where a worker does."""

    @property
    def workers(self) -> int:
        """Return how many workers take part."""
        return len(self.boxes)
