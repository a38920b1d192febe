"""Who is curious: the coordinator, the label holder, a worker, or several together; one alone may be malicious."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Discriminator, Field, Tag, model_serializer
from typing_extensions import TypedDict

from vfl.registry import Section
from vfl.topology import Topology

SeatKind = Literal["coordinator", "label_holder", "worker"]


@dataclass(frozen=True)
class Seat:
    """One party, as what it may see."""

    kind: SeatKind
    worker: int | None = None
    """The party's number; None for the coordinator."""
    malicious: bool = field(default=False, compare=False)
    """Whether the party also does what its attack proposes; what it sees is the same."""

    @property
    def slug(self) -> str:
        """Return a name for files and folders."""
        return f"worker-{self.worker}" if self.kind == "worker" else self.kind

    def __str__(self) -> str:
        will = "malicious " if self.malicious else ""
        return f"{will}worker {self.worker}" if self.kind == "worker" else f"the {will}{self.kind.replace('_', ' ')}"


COORDINATOR = Seat("coordinator")


class _NamedWorker(TypedDict):
    worker: int
    malicious: NotRequired[bool]


class WorkerSeat(Section):
    """A worker as the config names it: `{worker: 2}`; one that uploads what its attack proposes has `malicious` too."""

    worker: int = Field(ge=0)
    malicious: bool = False

    @model_serializer
    def _named(self) -> _NamedWorker:
        return {"worker": self.worker, "malicious": True} if self.malicious else {"worker": self.worker}


class MaliciousSeat(Section):
    """A coordinator that orders what its attack proposes, as the config names it: `{coordinator: malicious}`."""

    coordinator: Literal["malicious"]


class MaliciousHolder(Section):
    """A label holder that answers what its attack proposes, as the config names it: `{label_holder: malicious}`."""

    label_holder: Literal["malicious"]


_FORMS: dict[str, type[Section]] = {"coordinator": MaliciousSeat, "label_holder": MaliciousHolder}


def _seat_form(value: Any) -> str:
    for named, form in _FORMS.items():
        if isinstance(value, form) or (isinstance(value, dict) and named in value):
            return f"(malicious {named})"
    return "(a worker)" if isinstance(value, dict | WorkerSeat) else "(a name)"


def _adversary_form(value: Any) -> str:
    return "(several)" if isinstance(value, list | tuple) else "(one)"


OneSeat = Annotated[
    Annotated[Literal["coordinator", "label_holder"], Tag("(a name)")]
    | Annotated[WorkerSeat, Tag("(a worker)")]
    | Annotated[MaliciousSeat, Tag("(malicious coordinator)")]
    | Annotated[MaliciousHolder, Tag("(malicious label_holder)")],
    Discriminator(_seat_form),
]
Adversary = Annotated[
    Annotated[OneSeat, Tag("(one)")] | Annotated[tuple[OneSeat, ...], Field(min_length=1), Tag("(several)")],
    Discriminator(_adversary_form),
]
"""Who is curious, as config and summary say it: `coordinator`, `label_holder`, `{worker: 2}`, a list of these;
`{coordinator: malicious}`, `{label_holder: malicious}`, `{worker: 2, malicious: true}`."""


def seats_of(adversary: Any, topology: Topology) -> tuple[Seat, ...]:
    """Return the seats that an adversary takes, or raise ValueError with what is wrong with them."""
    named = adversary if isinstance(adversary, tuple) else (adversary,)
    seats = tuple(_seat(one, topology) for one in named)
    twice = next((seat for place, seat in enumerate(seats) if seat in seats[:place]), None)
    if twice is not None:
        raise ValueError(f"adversary names {twice} twice")
    if any(seat.malicious for seat in seats) and (len(seats) > 1 or topology.is_horizontal):
        raise ValueError("adversary: a malicious party acts alone, in a vertical federation")
    if topology.is_horizontal and seats != (COORDINATOR,):
        raise ValueError(
            "adversary: the workers of a horizontal federation exchange nothing with each other; the coordinator is "
            "the one party that sees what another sends"
        )
    return seats


def _seat(one: Any, topology: Topology) -> Seat:
    if one == "coordinator":
        return COORDINATOR
    if isinstance(one, MaliciousSeat):
        return Seat("coordinator", malicious=True)
    if one == "label_holder" or isinstance(one, MaliciousHolder):
        if topology.labels_at_coordinator:
            raise ValueError(
                "adversary: here the coordinator holds the labels itself (federation.label_holder); name the "
                "coordinator or a worker"
            )
        return Seat("label_holder", topology.label_holder, isinstance(one, MaliciousHolder))
    worker = int(one.worker)
    if worker >= topology.workers:
        raise ValueError(f"adversary names worker {worker}, but the workers are 0 to {topology.workers - 1}")
    if worker == topology.label_holder and not topology.is_horizontal:
        raise ValueError(f"adversary names worker {worker}, which is the label holder; say label_holder")
    return Seat("worker", worker, one.malicious)


def adversary_of(seats: Sequence[Seat]) -> Any:
    """Return seats as a config has them."""
    named = [_named(seat) for seat in seats]
    return named[0] if len(named) == 1 else named


def _named(seat: Seat) -> Any:
    if seat.kind == "worker":
        return {"worker": seat.worker} | ({"malicious": True} if seat.malicious else {})
    return {seat.kind: "malicious"} if seat.malicious else seat.kind


def names_of_seats(seats: Sequence[Seat]) -> str:
    """Name one seat or several: worker 2; the coordinator and the label holder."""
    *first, last = map(str, seats)
    return f"{', '.join(first)} and {last}" if first else last
