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
from vfl.limits import CLASSES, DIMENSIONS, FEATURES, NAME_CHARACTERS, SAMPLES
from vfl.net.network import PROTOCOL_VERSION
from vfl.observation import Tensors
from vfl.partition import Box, tiling_problem


class RefusedError(Exception):
    """A call that is turned down: the gRPC status and a sentence for the caller."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


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
        workers: int,
        label_holder: int | None,
        on_left: Callable[[Member], None],
        returning: bool = False,
        on_joined: Callable[[Member], None] = lambda _: None,
        generations: Mapping[int, int] | None = None,
    ) -> None:
        """Begin without members; `returning` says whether one may come back after the start.

        Without a label holder the federation is horizontal: each worker has labels, and samples of its own.
        `generations` says how often each has, if the run began long ago and is resumed.
        """
        self._workers, self._label_holder = workers, label_holder
        self._on_left, self._on_joined = on_left, on_joined
        self._returning = returning
        self._members: dict[int, Member] = {}
        self._by_session: dict[str, Member] = {}
        self._held: dict[int, tuple[object, ...]] = {}
        """What each worker held at the start; empty before."""
        self._resumed = generations is not None
        self._generations: Counter[int] = Counter(generations)
        self.closed = False
        self.complete = asyncio.Event()
        self.empty = asyncio.Event()

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members[worker] for worker in sorted(self._members))

    @property
    def missing(self) -> list[int]:
        """Return the workers that have not joined."""
        return [worker for worker in range(self._workers) if worker not in self._members]

    @property
    def generations(self) -> dict[int, int]:
        """Return how often each worker has come back."""
        return dict(self._generations)

    def start(self) -> None:
        """Begin the run: from now on, whoever comes back must be who left."""
        self._held = {worker: _held(member) for worker, member in self._members.items()}

    def admit(self, request: JoinRequest, proved: bool = False) -> Member:
        """Let a worker in, or refuse it with a sentence; one that proved who it is takes its lost stream's place."""
        self._check(request)
        before = self._members.get(request.worker)
        # Who knows of another session than the live one was replaced meanwhile, and must not take the place back.
        current = before is not None and request.previous_session == before.session
        known = current or (proved and not request.previous_session)
        if before is not None and not (known and (self._returning or not self._held)):
            raise RefusedError(
                grpc.StatusCode.ALREADY_EXISTS,
                f"worker {request.worker} has already joined; give each its own --id (a worker that was cut off can "
                f"come back once its lost connection has been noticed, within federation.silence_timeout)",
            )
        box = _box(request)
        member = Member(
            request.worker,
            secrets.token_hex(16),
            box,
            request.samples,
            request.test_samples,
            request.ids_digest,
            request.classes,
            request.peer_address,
        )
        self._check_against_others(member)
        self._check_against_start(member)
        if before is not None:
            before.send(Order(abort=Abort(reason=f"another process has joined as worker {member.worker}")))
            before.hang_up()
            self.remove(before)
        if self._held or self._resumed:
            self._generations[member.worker] += 1
            member.generation = self._generations[member.worker]
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

    def _check(self, request: JoinRequest) -> None:
        if request.protocol_version != PROTOCOL_VERSION:
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"worker {request.worker} speaks protocol version {request.protocol_version}, this coordinator "
                f"{PROTOCOL_VERSION}: install the same release on both",
            )
        if request.worker >= self._workers:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"there is no worker {request.worker} in this federation: its workers are 0 to {self._workers - 1}",
            )
        if self.closed:
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, "the run is over")
        if not 0 < request.samples <= SAMPLES or request.test_samples > SAMPLES:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"worker {request.worker} holds {request.samples} samples and {request.test_samples} test samples, "
                f"expected 1 to {SAMPLES}",
            )
        texts = (request.ids_digest, request.peer_address, request.previous_session)
        if max(map(len, texts)) > NAME_CHARACTERS or not request.peer_address.isprintable():
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"worker {request.worker} gives an address, session or digest that is none: each has at most "
                f"{NAME_CHARACTERS} characters",
            )
        bounds = (request.slice.sample_shape, request.slice.start, request.slice.stop)
        if max(map(len, bounds)) > DIMENSIONS:  # before anything is computed from them
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"worker {request.worker} cuts samples of more than {DIMENSIONS} dimensions",
            )
        if request.classes > CLASSES or math.prod(request.slice.sample_shape) > FEATURES:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"worker {request.worker} reports {request.classes} classes and samples of shape "
                f"{tuple(request.slice.sample_shape)}; at most {CLASSES} classes and {FEATURES} features go",
            )
        problem = _box(request).problem()
        if problem:
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, f"the slice of worker {request.worker} {problem}")
        if self._label_holder is None:
            self._check_whole(request)
            return
        if _box(request).empty and not request.worker == self._label_holder == self._workers - 1:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"worker {request.worker} holds no features; only a label holder that is the last worker may",
            )
        if (request.classes > 1) != (request.worker == self._label_holder):
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"worker {request.worker} reports {request.classes} classes, but the label holder is worker "
                f"{self._label_holder} and needs two or more, the others none: "
                f"are federation.kind and federation.label_holder the same everywhere?",
            )

    def _check_whole(self, request: JoinRequest) -> None:
        if _box(request) != Box.all(tuple(request.slice.sample_shape)) or request.classes < 2:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"worker {request.worker} holds {tuple(request.slice.start)} to {tuple(request.slice.stop)} of samples "
                f"of shape {tuple(request.slice.sample_shape)} and {request.classes} classes, but in a horizontal "
                f"federation each holds whole samples and their labels: is federation.kind the same everywhere?",
            )

    def _check_against_others(self, member: Member) -> None:
        for other in self:
            if other.worker == member.worker:
                continue
            who = f"worker {member.worker}"
            if self._label_holder is None:
                misfit = _other_samples_problem(member, other)
                if misfit:
                    raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, misfit)
                continue
            if (member.samples, member.test_samples) != (other.samples, other.test_samples):
                problem = (
                    f"{who} holds {member.samples} samples and {member.test_samples} test samples, "
                    f"worker {other.worker} {other.samples} and {other.test_samples}"
                )
            elif member.ids_digest != other.ids_digest:
                problem = (
                    f"{who} does not hold the same samples in the same order as worker {other.worker} "
                    f"(the digests of their sample ids differ): align them first"
                )
            elif member.box.sample_shape != other.box.sample_shape:
                shapes = f"{member.box.sample_shape}, worker {other.worker} of {other.box.sample_shape}"
                problem = f"{who} cuts samples of shape {shapes}"
            else:
                continue
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, problem)
        if self._label_holder is not None and set(self.missing) <= {member.worker}:
            boxes = {other.worker: other.box for other in self} | {member.worker: member.box}
            misfit = tiling_problem([boxes[worker] for worker in range(self._workers) if not boxes[worker].empty])
            if misfit:
                raise RefusedError(
                    grpc.StatusCode.FAILED_PRECONDITION, f"the workers' slices do not fit together: {misfit}"
                )

    def _check_against_start(self, member: Member) -> None:
        if self._held and self._held[member.worker] != _held(member):
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"worker {member.worker} does not hold what it held when the run began "
                f"(samples, their ids, its slice, or the classes): start it with the same data",
            )


def _other_samples_problem(member: Member, other: Member) -> str | None:
    """Return why two workers of a horizontal federation do not fit together, or None when they do."""
    who = f"worker {member.worker}"
    if (member.box, member.classes) != (other.box, other.classes):
        theirs = f"worker {other.worker} of shape {other.box.sample_shape} and {other.classes}"
        return f"{who} holds samples of shape {member.box.sample_shape} and {member.classes} classes, {theirs}"
    if member.ids_digest == other.ids_digest:
        return f"{who} holds the very samples of worker {other.worker} (the digests of their ids are equal)"
    return None


def _held(member: Member) -> tuple[object, ...]:
    return member.box, member.samples, member.test_samples, member.ids_digest, member.classes


def _box(request: JoinRequest) -> Box:
    return Box(tuple(request.slice.sample_shape), tuple(request.slice.start), tuple(request.slice.stop))
