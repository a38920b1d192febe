"""What an adversary knows before the first round, by its seat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from vfl.config import RunConfig
from vfl.errors import UserError
from vfl.maths.loss import CROSS_ENTROPY, Loss, loss_of
from vfl.partition import Box, partition
from vfl.registry import PluginSection
from vfl.seats import COORDINATOR, Seat
from vfl.seeds import derive
from vfl.topology import Topology

UNKNOWN = ("indices", "parameters", "batch_size")
"""What a server may not know of rounds that another system recorded; a coordinator of ours knows all of it."""
_BY_BOXES = Topology(0)
"""Stands for the topology of a setting that is made without one."""


@dataclass(frozen=True)
class Held:
    """What curious parties hold themselves: by worker its slice of every sample."""

    slices: Mapping[int, Tensor] = field(default_factory=dict)
    auxiliary: Tensor | None = None
    """The first samples, whole, which they know from elsewhere."""

    def __reduce__(self) -> tuple[Any, ...]:
        # As arrays: through a pipe torch would share a tensor's memory with the process that sent it.
        auxiliary = None if self.auxiliary is None else self.auxiliary.numpy()
        return Held.of_arrays, ({worker: part.numpy() for worker, part in self.slices.items()}, auxiliary)

    @staticmethod
    def of_arrays(slices: Mapping[int, Any], auxiliary: Any) -> "Held":
        """Return what came through a pipe."""
        whole = None if auxiliary is None else torch.from_numpy(auxiliary)
        return Held({worker: torch.from_numpy(part) for worker, part in slices.items()}, whole)


@dataclass(frozen=True)
class Setting:
    """What the adversary knows before the first round; the coordinator: the model, the slices' places, its schedule."""

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
    labels: tuple[float, ...] | None = None
    """Every sample's class, or number, where the adversary holds the labels itself; None where another party does."""
    still_rounds: int = 0
    """So many rounds come before the first at which the parameters move; not looked at where they never do."""
    seats: tuple[Seat, ...] = (COORDINATOR,)
    """Who is curious, and has this setting."""
    held: Held = field(default_factory=Held, compare=False, repr=False)
    loss: Loss = CROSS_ENTROPY
    """What the label holder's model learns by."""
    augmented: bool = False
    """Whether workers change their slices at random in every round."""
    local_steps: int = 1
    """Steps that a worker takes before it uploads their mean."""
    widths: tuple[int, ...] = ()
    """The lengths of all outputs, which the coordinator says to each worker; the coordinator's own setting has none."""
    unknown: frozenset[str] = frozenset()
    """Of a recorded run what its server does not know: some of `UNKNOWN`. Indices are made up then, of a batch whose
    size is unknown as many as `batch_size` allows, and parameters are missing."""
    auxiliary: int = 0
    """So many samples, the first, the adversary knows whole (`held.auxiliary`)."""

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
        labels: tuple[float, ...] | None = None,
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
            seats=(config.curious_seat(None) or COORDINATOR,),
            auxiliary=config.auxiliary,
            loss=loss_of(config.training),
            augmented=config.training.augment.any,
            local_steps=config.training.local_steps,
        )

    @classmethod
    def at(cls, config: RunConfig, seat: Seat, own: Box, classes: int, *, samples: int, **known: Any) -> "Setting":
        """Put together what a party other than the coordinator knows; the coordinator's seed is not among it."""
        assert seat.worker is not None
        boxes = known_boxes(config, seat.worker, own)
        # An attack may draw from a seed; from this one the first parameters of the other parties do not follow.
        seed = derive(config.seed, f"the attack of {seat}")
        return replace(cls.of(config, boxes, classes, samples), seed=seed, seats=(seat,), **known)

    def seen_by(self, config: RunConfig) -> "Setting":
        """Return what a config's adversary will know, given what the coordinator does; of data nothing yet."""
        nothing = Box.nothing(self.boxes[0].sample_shape)
        boxes = dict(enumerate(self.boxes))
        return united(
            [
                self
                if seat.worker is None
                else Setting.at(config, seat, boxes.get(seat.worker, nothing), self.classes, samples=self.samples)
                for seat in config.seats
            ]
        )

    @property
    def outputs(self) -> int:
        """Return how many logits a sample has."""
        return self.loss.outputs(self.classes)

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


def united(settings: Sequence[Setting]) -> Setting:
    """Return what several parties know together."""
    first = min(settings, key=lambda one: one.seats != (COORDINATOR,))  # who knows the coordinator's seed
    each = zip(*(one.boxes for one in settings), strict=True)
    return replace(
        first,
        boxes=tuple(next((box for box in known if not box.empty), known[0]) for known in each),
        labels=next((one.labels for one in settings if one.labels is not None), None),
        seats=tuple(seat for one in settings for seat in one.seats),
        held=Held(
            {worker: part for one in settings for worker, part in one.held.slices.items()},
            next((one.held.auxiliary for one in settings if one.held.auxiliary is not None), None),
        ),
        widths=next((one.widths for one in settings if one.widths), ()),
    )


def known_boxes(config: RunConfig, party: int, own: Box) -> tuple[Box, ...]:
    """Return the slices' places as a party knows them: its own, and the others' where the config alone gives them."""
    topology = config.topology
    try:
        planned = partition(own.sample_shape, topology.feature_holders, config.federation.slices)
    except UserError:
        planned = []
    # A table's columns may each become several features, which only who has the columns knows.
    fits = planned[party] == own if topology.holds_features(party) and planned else len(own.sample_shape) > 1
    if planned and fits:
        return tuple(planned)
    nothing = Box.nothing(own.sample_shape)
    return tuple(own if worker == party else nothing for worker in range(topology.feature_holders))
