"""What each seat sees, and all that an attack is ever shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vfl.observation.setting import Held, Setting, united

__all__ = [
    "BOTTOM", "TOP", "AnyObservation", "CoalitionObservation", "Held", "LabelHolderObservation", "ModelTensors",
    "Observation", "Observer", "PartyObservation", "Setting", "Tensors", "WorkerObservation", "averaged", "united",
    "with_prefix", "without_prefix",
]  # fmt: skip

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

    @property
    def nbytes(self) -> int:
        """Return how many bytes they take."""
        return sum(tensor.nbytes for part in (*self.bottoms, self.top) for tensor in part.values())

    def complete(self, parameters: "ModelTensors") -> bool:
        """Tell whether no party's gradients are missing; a model without parameters has none."""
        pairs = zip((*self.bottoms, self.top), (*parameters.bottoms, parameters.top), strict=True)
        return all(given or not own for given, own in pairs)


@dataclass(frozen=True)
class Observation:
    """One round as it reached the coordinator."""

    round: int
    indices: Tensor
    version: int
    parameters: ModelTensors
    gradients: ModelTensors
    """A worker that withheld its upload has no tensors here."""
    uploads: tuple[ModelTensors, ...] = ()
    """In a horizontal federation what each worker uploaded; `gradients` is their average then."""

    @property
    def complete(self) -> bool:
        """Whether all workers uploaded."""
        return all(part.complete(self.parameters) for part in self.uploads or (self.gradients,))

    @property
    def shown(self) -> bool:
        """Whether attacks are shown it: if all uploaded; in a horizontal federation what some uploaded."""
        return any(part.complete(self.parameters) for part in self.uploads or (self.gradients,))


Observer = Callable[[Observation], None]


@dataclass(frozen=True)
class WorkerObservation:
    """One round as a worker without labels saw it."""

    round: int
    indices: Tensor
    version: int
    parameters: Tensors
    """Of its own bottom model."""
    output: Tensor
    """What it sent to the label holder, a row for each of its indices."""
    answer: Tensor
    """What the label holder sent back: the loss's gradient of that output."""
    complete = shown = True


@dataclass(frozen=True)
class LabelHolderObservation:
    """One round as the label holder saw it."""

    round: int
    indices: Tensor
    version: int
    parameters: Tensors
    """Of its own bottom model; empty if it has no features."""
    top: Tensors
    """The top model's parameters."""
    outputs: tuple[Tensor, ...]
    """All workers' outputs, its own among them."""
    answers: tuple[Tensor, ...]
    """The loss's gradient of each output, as it computed it."""
    top_gradients: Tensors
    complete = shown = True


PartyObservation = Observation | WorkerObservation | LabelHolderObservation


@dataclass(frozen=True)
class CoalitionObservation:
    """One round as several parties together saw it, in the order of the setting's seats."""

    parts: tuple[PartyObservation, ...]

    @property
    def round(self) -> int:
        """Return the round's number."""
        return self.parts[0].round

    @property
    def version(self) -> int:
        """Return which parameters were in force."""
        return self.parts[0].version

    @property
    def shown(self) -> bool:
        """Whether attacks are shown it: if all that a member would have seen is there."""
        return all(part.shown for part in self.parts)


AnyObservation = PartyObservation | CoalitionObservation


def averaged(uploads: Sequence[ModelTensors], batches: Sequence[int]) -> ModelTensors:
    """Return the mean of what workers uploaded, weighted by their batches' sizes; one that uploaded nothing is out."""
    pairs = zip(uploads, batches, strict=True)
    given = [(upload, size) for upload, size in pairs if any((*upload.bottoms, upload.top))]
    if not given:
        return ModelTensors(({},), {})
    total = sum(size for _, size in given)

    def mean(parts: Sequence[Tensors]) -> Tensors:
        sums = {name: torch.zeros_like(tensor) for name, tensor in parts[0].items()}
        for part, (_, size) in zip(parts, given, strict=True):
            for name, tensor in part.items():
                sums[name].add_(tensor, alpha=size / total)
        return sums

    return ModelTensors((mean([one.bottoms[0] for one, _ in given]),), mean([one.top for one, _ in given]))
