"""The workers of a run: they join, take orders, are lost and come back, and are dismissed at the end."""

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from protos.codec import announce, raw_bytes
from protos.coordinator_pb2 import Abort, End, Order, Purpose, Round, Start, Trouble
from protos.coordinator_pb2 import Parameters as ParametersOrder
from server.checkpoint import holding
from server.checkpoint.resume import Resumed, check_held
from server.controls import Pause
from server.disturbances import Disturbances, DisturbedError, Failure, WorkerLeftError, in_trouble
from server.inbox import Answers
from server.membership import Member, Membership
from server.parameters import Parameters
from vfl.config import RunConfig
from vfl.errors import RunFailedError, UserError
from vfl.folder.journal import Journal
from vfl.folder.record import Record
from vfl.maths.loss import loss_of
from vfl.observation import Setting
from vfl.topology import Topology

DISMISSAL_SECONDS = 10.0
"""How long a run that ends waits for its workers to hang up."""


class Session:
    """All that the service needs of a run, and all that the trainer needs of its workers."""

    def __init__(
        self, config: RunConfig, journal: Journal, *, patience: float = 0.0, generations: dict[int, int] | None = None
    ) -> None:
        """Begin without workers; a lost one is waited for for `patience` seconds.

        `generations` says how often each has come back, if the run is resumed.
        """
        self._config, self._journal = config, journal
        self.membership = Membership(
            config.topology,
            self._left,
            returning=patience > 0,
            on_joined=lambda one: journal.worker(one.worker, "rejoined" if one.generation else "joined"),
            generations=generations,
            loss=loss_of(config.training),
        )
        self.members: tuple[Member, ...] = ()
        """As they were when all had joined for the first time; empty before."""
        self.answers, self.traffic, self.pause = Answers(), Traffic(config.topology), Pause(journal)
        self.record, self.failure = Record(), Failure()
        self.disturbances = Disturbances(patience, self.record, journal.say)
        self._output_widths: Sequence[int] = ()
        self._begin_anew: Callable[[], int] = lambda: 0
        self.resumed: Resumed | None = None
        self._ending = False

    def take_up(self, resumed: Resumed) -> None:
        """Go on from where a run was cut off, before it starts; workers may have joined by now."""
        self.resumed, self.record = resumed, resumed.state.continued()
        self.disturbances = Disturbances(self.disturbances.patience, self.record, self._journal.say)
        self.traffic.take_up(resumed)

    async def gather(self) -> Setting:
        """Wait until all workers have joined; return what is then known."""
        timeout = self._config.federation.join_timeout
        self._journal.state("waiting")
        await self._all_there(timeout, lambda: f"after {timeout:g} s workers {self.membership.missing} have not joined")
        self.membership.start()
        self.members = tuple(self.membership)
        if self.resumed is not None:
            check_held(self.resumed, [*map(holding, self.members)])
        _check_samples(self._config, self.members)
        return setting_of(self._config, self.members)

    async def start(self, output_widths: Sequence[int], begin_anew: Callable[[], int]) -> None:
        """Let the workers begin.

        `begin_anew` orders the unfinished rounds again when lost workers have come back, and returns their number.
        """
        self._output_widths, self._begin_anew = output_widths, begin_anew
        self.failure.check()
        if self.disturbances.happened.done():  # since all had joined
            await self._mend()
        else:
            self._send_start()

    def _send_start(self) -> None:
        topology, self.answers.run_id = self._config.topology, secrets.token_hex(8)
        members = {member.worker: member for member in self.membership}
        holder = members[topology.label_holder]
        start = Start(
            run_id=self.answers.run_id,
            workers=topology.parties,
            label_holder=topology.label_holder,
            label_holder_address="" if topology.is_horizontal else holder.address,
            classes=holder.classes,
            output_widths=self._output_widths,
        )
        for member in members.values():
            member.send(Order(start=start))

    def order(self, number: int, purpose: Purpose, rows: Mapping[int, Tensor], parameters: Parameters) -> None:
        """Have each worker that has rows play a round on them, and send it the parameters if it has older ones."""
        named = {worker: own.tolist() for worker, own in rows.items()}
        for member in self.membership:
            if member.worker not in named:
                continue
            if member.parameters_version != parameters.version:
                tensors = parameters.expected_from(member.worker)
                announced = ParametersOrder(version=parameters.version, bundle=announce(tensors))
                member.send_tensors(Order(parameters=announced), tensors)
                member.parameters_version = parameters.version
                self.record.bytes.raw += raw_bytes(tensors.values())
            play = Round(round=number, purpose=purpose, parameters_version=parameters.version)
            play.indices.extend(named[member.worker])
            member.send(Order(round=play))

    async def wait_for(self, answers: Awaitable[Any], late: Callable[[], str]) -> None:
        """Wait for the workers' answers to an order, no longer than a round may take, or until one is lost."""
        timeout = self._config.federation.round_timeout
        await self.failure.until(answers, timeout, lambda: f"{late()} in {timeout:g} s", self.disturbances.happened)

    async def undisturbed(self, do: Callable[[], Awaitable[None]]) -> None:
        """Do something with all workers, again and again until none is lost on the way."""
        while True:
            try:
                if self.disturbances.happened.done():  # a worker that has come back since must have a start first
                    raise DisturbedError
                await do()
            except DisturbedError:
                await self._mend()
            else:
                self.disturbances.round_done()
                return

    async def _mend(self) -> None:
        """Wait until all workers are there, and let them begin the unfinished rounds anew."""
        patience = self.disturbances.patience
        while self.disturbances.happened.done() or self.membership.missing:
            await self.disturbances.settle(lambda: self.membership.missing)
            await self._all_there(
                patience, lambda: f"after {patience:g} s workers {self.membership.missing} have not come back"
            )
        self._send_start()
        self.disturbances.mended(self._begin_anew())

    async def _all_there(self, timeout: float, late: Callable[[], str]) -> None:
        deadline = time.monotonic() + timeout
        while self.membership.missing:  # another worker may have left by the time that this wakes up
            await self.failure.until(self.membership.complete.wait(), deadline - time.monotonic(), late)

    def troubled(self, member: Member, trouble: Trouble) -> None:
        """Hear that a worker cannot go on, with the round or with the run."""
        if not self.members:
            return  # before the start a worker may leave and come back
        if trouble.leaving or not self.disturbances.patience:
            self.failure.fail(RunFailedError(in_trouble(member, trouble.reason)))
        elif trouble.run_id and trouble.run_id == self.answers.run_id:
            self.disturbances.trouble(member, trouble.reason)

    def _left(self, member: Member) -> None:
        if not self._ending:
            self._journal.worker(member.worker, "lost")
        if self._ending or not self.members:
            return  # before the start a worker may leave and come back
        self.traffic.left(member.worker)
        if self.disturbances.patience and not member.refusal:
            self.disturbances.left(member)
            return
        reason = f"worker {member.worker} left in round {self.record.rounds + 1}"
        if member.refusal:
            reason += f" after a refused upload: {member.refusal}"
        self.failure.fail(WorkerLeftError(member.worker, reason))

    async def end(self, reason: str | None) -> None:
        """Say good-bye to all workers (with the reason, if the run failed) and wait for them to hang up."""
        self._ending = self.membership.closed = True
        last = Order(end=End(rounds=self.record.rounds)) if reason is None else Order(abort=Abort(reason=reason))
        members = list(self.membership)
        for member in members:
            member.send(last)
            member.hang_up()
            if reason is None:
                self._journal.worker(member.worker, "done")
        if members:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.membership.empty.wait(), timeout=DISMISSAL_SECONDS)

    def vanish(self) -> None:
        """Prepare to go without a word: the workers are to wait for a coordinator that resumes the run."""
        self._ending = True


class Traffic:
    """The bytes on the wire so far."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.up, self.down = Counter[int](), Counter[int]()
        """By worker."""
        self.peer = self._peer_before = 0
        """Between workers: in all, and until the label holder last joined."""

    def take_up(self, resumed: Resumed) -> None:
        """Go on from what a checkpoint has."""
        self.up.update(resumed.state.bytes_up)
        self.down.update(resumed.state.bytes_down)
        self.peer = self._peer_before = resumed.state.record.bytes.peer

    def exchanged(self, worker: int, peer_bytes: int) -> None:
        """Hear from the label holder how many bytes went between workers since it joined."""
        if self._topology.serves_peers(worker):
            self.peer = self._peer_before + peer_bytes

    def left(self, worker: int) -> None:
        """Note that a worker is gone: the label holder that comes back counts from zero."""
        if self._topology.serves_peers(worker):
            self._peer_before = self.peer

    def for_journal(self) -> dict[str, Any]:
        """Return the bytes so far as the journal has them."""
        workers = range(self._topology.parties)
        return {
            "bytes": {"up": self.up.total(), "down": self.down.total(), "peer": self.peer},
            "workers": [{"id": worker, "up": self.up[worker], "down": self.down[worker]} for worker in workers],
        }


def _check_samples(config: RunConfig, members: Sequence[Member]) -> None:
    """Refuse batches and evaluations that the workers hold too few samples for."""
    size = config.federation.batch_size
    fewest = min(members, key=lambda member: member.samples)  # in a vertical federation all have the same
    if size > fewest.samples:
        whose = f" of worker {fewest.worker}" if config.topology.is_horizontal else ""
        raise UserError(f"federation.batch_size: {size} is more than the {fewest.samples} samples{whose}")
    if config.training.evaluate_every and not any(member.test_samples for member in members):
        raise UserError("training.evaluate_every: the workers hold no test samples to evaluate on")


def setting_of(config: RunConfig, members: Sequence[Member]) -> Setting:
    """Return what is known of the run that is to begin; members are in the order of their numbers."""
    boxes = [member.box for member in members if not member.box.empty]
    classes = members[config.topology.label_holder].classes
    if not config.topology.is_horizontal:
        return Setting.of(config, boxes, classes, members[0].samples)
    shares = tuple(member.samples for member in members)
    return Setting.of(config, boxes[:1], classes, sum(shares), shares=shares)
