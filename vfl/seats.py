"""Who is curious: the coordinator, the label holder, a worker, or several of them together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from vfl.registry import Section
from vfl.topology import Topology

SeatKind = Literal["coordinator", "label_holder", "worker"]


@dataclass(frozen=True)
class Seat:
    """One party, as what it may see."""

    kind: SeatKind
    worker: int | None = None
    """The party's number; None for the coordinator."""

    @property
    def slug(self) -> str:
        """Return a name for files and folders."""
        return f"worker-{self.worker}" if self.kind == "worker" else self.kind

    def __str__(self) -> str:
        return f"worker {self.worker}" if self.kind == "worker" else f"the {self.kind.replace('_', ' ')}"


COORDINATOR = Seat("coordinator")


class WorkerSeat(Section):
    """A worker as the config names it: `{worker: 2}`."""

    worker: int = Field(ge=0)


def _seat_form(value: Any) -> str:
    return "(a worker)" if isinstance(value, dict | WorkerSeat) else "(a name)"


def _adversary_form(value: Any) -> str:
    return "(several)" if isinstance(value, list | tuple) else "(one)"


OneSeat = Annotated[
    Annotated[Literal["coordinator", "label_holder"], Tag("(a name)")] | Annotated[WorkerSeat, Tag("(a worker)")],
    Discriminator(_seat_form),
]
Adversary = Annotated[
    Annotated[OneSeat, Tag("(one)")] | Annotated[tuple[OneSeat, ...], Field(min_length=1), Tag("(several)")],
    Discriminator(_adversary_form),
]
"""What a config and a summary say of who is curious: `coordinator`, `label_holder`, `{worker: 2}`, or a list."""


def seats_of(adversary: Any, topology: Topology) -> tuple[Seat, ...]:
    """Return the seats that an adversary takes, or raise ValueError with what is wrong with them."""
    named = adversary if isinstance(adversary, tuple) else (adversary,)
    seats = tuple(_seat(one, topology) for one in named)
    twice = next((seat for place, seat in enumerate(seats) if seat in seats[:place]), None)
    if twice is not None:
        raise ValueError(f"adversary names {twice} twice")
    if topology.is_horizontal and seats != (COORDINATOR,):
        raise ValueError(
            "adversary: the workers of a horizontal federation exchange nothing with each other; the coordinator is "
            "the one party that sees what another sends"
        )
    return seats


def _seat(one: Any, topology: Topology) -> Seat:
    if one == "coordinator":
        return COORDINATOR
    if one == "label_holder":
        if topology.labels_at_coordinator:
            raise ValueError(
                "adversary: here the coordinator holds the labels itself (federation.label_holder); name the "
                "coordinator or a worker"
            )
        return Seat("label_holder", topology.label_holder)
    worker = int(one.worker)
    if worker >= topology.workers:
        raise ValueError(f"adversary names worker {worker}, but the workers are 0 to {topology.workers - 1}")
    if worker == topology.label_holder and not topology.is_horizontal:
        raise ValueError(f"adversary names worker {worker}, which is the label holder; say label_holder")
    return Seat("worker", worker)


def adversary_of(seats: Sequence[Seat]) -> Any:
    """Return seats as a config has them."""
    named = [{"worker": seat.worker} if seat.kind == "worker" else seat.kind for seat in seats]
    return named[0] if len(named) == 1 else named


def names_of_seats(seats: Sequence[Seat]) -> str:
    """Name one seat or several: worker 2; the coordinator and the label holder."""
    *first, last = map(str, seats)
    return f"{', '.join(first)} and {last}" if first else last
