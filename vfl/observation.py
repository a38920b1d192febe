"""What the coordinator sees, and all that an attack is ever shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vfl.config import RunConfig
from vfl.partition import Box
from vfl.registry import PluginSection
from vfl.topology import Topology

Tensors = Mapping[str, Tensor]

_BY_BOXES = Topology(0)
"""Stands for the topology of a setting that is made without one."""

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
    """The coordinator's own, from which batches and first parameters come; nothing that a worker keeps secret does."""
    device: str = "auto"
    topology: Topology = _BY_BOXES
    """Who holds what; if it is not given, each box is a worker's, and worker 0 has the labels too."""
    labels: tuple[int, ...] | None = None
    """Every sample's class, where the coordinator holds the labels itself; None where a worker does."""
    still_rounds: int = 0
    """So many rounds come before the first at which the parameters move; not looked at where they never do."""

    def __post_init__(self) -> None:
        if self.topology is _BY_BOXES:
            object.__setattr__(self, "topology", Topology(len(self.boxes)))

    @classmethod
    def of(
        cls,
        config: RunConfig,
        boxes: Sequence[Box],
        classes: int,
        samples: int,
        *,
        shares: tuple[int, ...] = (),
        labels: tuple[int, ...] | None = None,
    ) -> "Setting":
        """Put together what a config says and what is known of the data: `shares` of a horizontal federation's."""
        most = max(shares, default=samples)
        rounds = config.federation.planned_rounds(most)
        still_rounds = config.training.schedule.frozen_epochs * -(-most // config.federation.batch_size)
        return cls(
            model=config.model,
            boxes=tuple(boxes),
            classes=classes,
            samples=samples,
            batch_size=config.federation.batch_size,
            schedule=config.federation.schedule,
            rounds=rounds,
            frozen=config.training.frozen or still_rounds >= rounds,
            seed=config.seed,
            device=config.device.attack,
            topology=replace(config.topology, shares=shares),
            labels=labels,
            still_rounds=still_rounds,
        )

    @property
    def workers(self) -> int:
        """Return how many workers hold features."""
        return self.topology.workers if self.topology.is_horizontal else len(self.boxes)

    @property
    def rounds_per_epoch(self) -> int:
        """Return how many rounds it takes until each worker has gone through its samples."""
        return -(-self.most_samples // self.batch_size)

    @property
    def most_samples(self) -> int:
        """Return how many samples the worker with the most has."""
        return max(self.topology.shares, default=self.samples)


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
