"""Who takes part: joining, what is checked then, and the line of orders to each worker."""

import asyncio
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import grpc

from protos.coordinator_pb2 import Abort, JoinRequest, Order, Welcome
from protos.wire import ORDER
from server.refusal import RefusedError, check_number, check_version, invalid, unfit
from vfl.limits import CLASSES, DIMENSIONS, FEATURES, NAME_CHARACTERS, SAMPLES
from vfl.maths.loss import CROSS_ENTROPY, Loss
from vfl.net.network import PROTOCOL_VERSION
from vfl.observation import Tensors
from vfl.partition import Box, tiling_problem
from vfl.topology import Topology

Line = Iterable[Order | bytes]
"""Orders that belong together, some of them encoded already."""


@dataclass
class Member:
    """A worker that has joined."""

    worker: int
    session: str
    box: Box
    samples: int
    test_samples: int
    ids_digest: bytes
    classes: int
    address: str
    parameters_version: int = 0
    generation: int = 0
    """How often this worker had joined since the start."""
    refusal: str | None = None
    lines: asyncio.Queue[Line | None] = field(default_factory=asyncio.Queue)
    uploading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one upload that takes memory; the worker's others wait."""

    @property
    def held(self) -> tuple[object, ...]:
        """Return what it says of its data: one that comes back must say the same."""
        return self.box, self.samples, self.test_samples, self.ids_digest, self.classes

    def send(self, order: Order) -> None:
        """Put an order on the worker's line."""
        self.lines.put_nowait([order])

    def send_tensors(self, first: Order, tensors: Tensors) -> None:
        """Put an order and the chunks it announces on the worker's line; they are made only as they go out."""
        self.lines.put_nowait(chain([first], ORDER.chunks(tensors.values())))

    def hang_up(self) -> None:
        """End the line after what is on it."""
        self.lines.put_nowait(None)


class Membership:
    """The members of one run. Called from the event loop only."""

    def __init__(
        self,
        topology: Topology,
        on_left: Callable[[Member], None],
        *,
        returning: bool = False,
        on_joined: Callable[[Member], None] = lambda _: None,
        generations: Mapping[int, int] | None = None,
        loss: Loss = CROSS_ENTROPY,
    ) -> None:
        """Begin without members; `returning` says whether one may come back after the start.

        `generations` says how often each worker has come back, if the run began long ago and is resumed.
        """
        self._topology, self._loss = topology, loss
        self._on_left, self._on_joined = on_left, on_joined
        self._returning = returning
        self._members: dict[int, Member] = {}
        self._by_session: dict[str, Member] = {}
        self._held: dict[int, tuple[object, ...]] = {}
        """What each worker held at the start; empty before."""
        self._resumed = generations is not None
        self.generations: Counter[int] = Counter(generations)
        """How often each worker has come back."""
        self.closed = False
        self.complete = asyncio.Event()
        self.empty = asyncio.Event()

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members[worker] for worker in sorted(self._members))

    @property
    def missing(self) -> list[int]:
        """Return the workers that have not joined."""
        return [worker for worker in range(self._topology.parties) if worker not in self._members]

    def start(self) -> None:
        """Begin the run: from now on, a worker that comes back must hold what it held."""
        self._held = {worker: member.held for worker, member in self._members.items()}

    def admit(self, request: JoinRequest, proved: bool = False) -> Member:
        """Let a worker in, or refuse it with a sentence; one that proved who it is takes its lost stream's place."""
        check_version(request.worker, request.protocol_version)
        check_number(request.worker, self._topology.parties)
        if problem := next(self._problems(request), None):
            raise problem
        before = self._members.get(request.worker)
        # A process that names another session than the live one was replaced, and must not take the place back.
        current = before is not None and request.previous_session == before.session
        known = current or (proved and not request.previous_session)
        if before is not None and not (known and (self._returning or not self._held)):
            raise RefusedError(
                grpc.StatusCode.ALREADY_EXISTS,
                f"worker {request.worker} has already joined; give each its own --id (a worker that was cut off can "
                f"come back once its lost connection has been noticed, within federation.silence_timeout)",
            )
        member = Member(
            request.worker,
            secrets.token_hex(16),
            _box(request),
            samples=request.samples,
            test_samples=request.test_samples,
            ids_digest=request.ids_digest,
            classes=request.classes,
            address=request.peer_address,
        )
        if misfit := next(self._misfits(member), None):
            raise misfit
        if before is not None:
            before.send(Order(abort=Abort(reason=f"another process has joined as worker {member.worker}")))
            before.hang_up()
            self.remove(before)
        if self._held or self._resumed:
            self.generations[member.worker] += 1
            member.generation = self.generations[member.worker]
        welcome = Welcome(session=member.session, protocol_version=PROTOCOL_VERSION, generation=member.generation)
        member.send(Order(welcome=welcome))
        self._members[member.worker] = member
        self._by_session[member.session] = member
        self.empty.clear()
        if not self.missing:
            self.complete.set()
        self._on_joined(member)
        return member

    def of_session(self, session: str) -> Member:
        """Return the member that a call comes from."""
        member = self._by_session.get(session)
        if member is None:
            raise RefusedError(grpc.StatusCode.UNAUTHENTICATED, "no worker of this run has that session; join first")
        return member

    def remove(self, member: Member) -> None:
        """Take a worker off the list, unless that has been done, and another process has its place."""
        if self._by_session.pop(member.session, None) is not None:
            del self._members[member.worker]
            self.complete.clear()
            if not self._members:
                self.empty.set()
            self._on_left(member)

    def _problems(self, request: JoinRequest) -> Iterator[RefusedError]:
        """Yield what is wrong with a request alone; what comes later relies on what was right before."""
        who = f"worker {request.worker}"
        if self.closed:
            yield unfit("the run is over")
        if not 0 < request.samples <= SAMPLES or request.test_samples > SAMPLES:
            held = f"{request.samples} samples and {request.test_samples} test samples"
            yield invalid(f"{who} holds {held}, expected 1 to {SAMPLES}")
        texts = (request.ids_digest, request.peer_address, request.previous_session)
        if max(map(len, texts)) > NAME_CHARACTERS or not request.peer_address.isprintable():
            yield invalid(
                f"{who} gives an address, session or digest that is none: each has at most {NAME_CHARACTERS} characters"
            )
        cut = request.slice
        if max(map(len, (cut.sample_shape, cut.start, cut.stop))) > DIMENSIONS:  # before anything is computed from them
            yield invalid(f"{who} cuts samples of more than {DIMENSIONS} dimensions")
        if request.classes > CLASSES or math.prod(cut.sample_shape) > FEATURES:
            most = f"at most {CLASSES} classes and {FEATURES} features go"
            shape = tuple(cut.sample_shape)
            yield invalid(f"{who} reports {request.classes} classes and samples of shape {shape}; {most}")
        box = _box(request)
        if problem := box.problem():
            yield invalid(f"the slice of {who} {problem}")
        holding = _whole_problem if self._topology.is_horizontal else _slice_problem
        # A number stands for as many classes as are needed of others
        classes = 2 if self._loss.of_number and request.classes == 1 else request.classes
        if problem := holding(request.worker, box, classes, self._topology):
            yield invalid(problem)
        if request.classes and (problem := self._loss.problem(request.classes)):
            yield invalid(f"worker {request.worker}: {problem}: is the config the same everywhere?")

    def _misfits(self, member: Member) -> Iterator[RefusedError]:
        """Yield why a worker does not fit to the others, or to what it held when the run began."""
        others = [other for other in self if other.worker != member.worker]
        differing = _horizontal_misfits if self._topology.is_horizontal else _vertical_misfits
        for other in others:
            yield from map(unfit, differing(member, other))
        boxes = {one.worker: one.box for one in (*others, member)}
        if not self._topology.is_horizontal and set(range(self._topology.workers)) <= boxes.keys():
            misfit = tiling_problem([boxes[worker] for worker in sorted(boxes) if not boxes[worker].empty])
            if misfit:
                yield unfit(f"the workers' slices do not fit together: {misfit}")
        if self._held and self._held[member.worker] != member.held:
            yield unfit(
                f"worker {member.worker} does not hold what it held when the run began "
                f"(samples, their ids, its slice, or the classes): start it with the same data"
            )


def _slice_problem(worker: int, box: Box, classes: int, topology: Topology) -> str | None:
    """Return what is wrong with a worker's slice and labels in a vertical federation."""
    if box.empty and not worker == topology.label_holder == topology.parties - 1:
        return f"worker {worker} holds no features; only a label holder that is the last worker may"
    if box.empty == topology.holds_features(worker):
        return (
            f"worker {worker} holds {'no' if box.empty else 'some'} features, and federation.label_holder_features is "
            f"{str(box.empty).lower()} here: is the config the same everywhere?"
        )
    if (classes > 1) != topology.holds_labels(worker):
        return (
            f"worker {worker} reports {classes} classes, but the label holder is worker {topology.label_holder} and "
            f"needs two or more, the others none: are federation.kind and federation.label_holder the same everywhere?"
        )
    return None


def _whole_problem(worker: int, box: Box, classes: int, _topology: Topology) -> str | None:
    """Return what is wrong with a worker's samples in a horizontal federation."""
    if box == Box.all(box.sample_shape) and classes > 1:
        return None
    return (
        f"worker {worker} holds {box.start} to {box.stop} of samples of shape {box.sample_shape} and {classes} "
        f"classes, but in a horizontal federation each holds whole samples and their labels: "
        f"is federation.kind the same everywhere?"
    )


def _vertical_misfits(member: Member, other: Member) -> Iterator[str]:
    """Yield why two workers do not hold features of the same samples."""
    who = f"worker {member.worker}"
    if (member.samples, member.test_samples) != (other.samples, other.test_samples):
        theirs = f"worker {other.worker} {other.samples} and {other.test_samples}"
        yield f"{who} holds {member.samples} samples and {member.test_samples} test samples, {theirs}"
    if member.ids_digest != other.ids_digest:
        why = "(the digests of their sample ids differ): align them first"
        yield f"{who} does not hold the same samples in the same order as worker {other.worker} {why}"
    if member.box.sample_shape != other.box.sample_shape:
        shapes = f"{member.box.sample_shape}, worker {other.worker} of {other.box.sample_shape}"
        yield f"{who} cuts samples of shape {shapes}"


def _horizontal_misfits(member: Member, other: Member) -> Iterator[str]:
    """Yield why two workers do not hold different samples of one kind."""
    who = f"worker {member.worker}"
    if (member.box, member.classes) != (other.box, other.classes):
        theirs = f"worker {other.worker} of shape {other.box.sample_shape} and {other.classes}"
        yield f"{who} holds samples of shape {member.box.sample_shape} and {member.classes} classes, {theirs}"
    if member.ids_digest == other.ids_digest:
        yield f"{who} holds the very samples of worker {other.worker} (the digests of their ids are equal)"


def _box(request: JoinRequest) -> Box:
    return Box(tuple(request.slice.sample_shape), tuple(request.slice.start), tuple(request.slice.stop))
