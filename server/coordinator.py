"""A run as the coordinator conducts it: wait for the workers, play the rounds, evaluate, end."""

import asyncio
import contextlib
import json
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import grpc
import psutil
import torch
from torch import Tensor

from protos.codec import announce, raw_bytes
from protos.coordinator_pb2 import Abort, End, Evaluation, Order, Purpose, Round, Start, Trouble
from protos.coordinator_pb2 import Parameters as ParametersOrder
from server.checkpoint import Checkpoints, Known, State, holding, of_record
from server.checkpoint.resume import Resumed, check_drawn, check_held
from server.counting import Counting
from server.disturbances import Disturbances, DisturbedError, WorkerLeftError, in_trouble
from server.inbox import Inbox
from server.membership import Member, Membership, RefusedError
from server.parameters import Parameters
from server.schedule import Drawn, batches_of
from server.seeing import seen
from server.setting import check_samples, setting_of
from server.stopping import has_converged
from server.waiting import Waiting
from server.watching import Observer, Watching
from vfl.config import RunConfig
from vfl.errors import CafeError, InterruptedRunError, RunFailedError
from vfl.folder.journal import Journal
from vfl.folder.results import Evaluated, Record
from vfl.observation import Observation, Setting

EVALUATION_BATCH = 256

AHEAD = 2
"""Rounds that are under way at once while the parameters are frozen."""


@dataclass(frozen=True)
class _Begun:
    """A round that the workers have been told to play."""

    number: int
    indices: Tensor
    inbox: Inbox


class Coordinator:
    """Conducts one run over whoever joins through the service."""

    def __init__(
        self,
        config: RunConfig,
        journal: Journal,
        checkpoints: Checkpoints,
        rejoin_timeout: float = 0.0,
        generations: Mapping[int, int] | None = None,
    ) -> None:
        self._config, self._journal = config, journal
        self._federation, self._topology = config.federation, config.topology
        self._checkpoints = checkpoints
        self._resumed: Resumed | None = None
        self.membership = Membership(
            config.topology,
            self._left,
            returning=rejoin_timeout > 0,
            on_joined=self._joined,
            generations=generations,
        )
        self.inboxes: dict[int, Inbox] = {}
        self.record = Record()
        self._disturbances = Disturbances(rejoin_timeout, self.record, journal.say)
        self._begun: deque[_Begun] = deque()
        self.run_id = ""
        self.bytes_up, self.bytes_down = Counter[int](), Counter[int]()
        """By worker."""
        self.bytes_peer = self._bytes_peer_before = 0
        self._held: tuple[str, ...] = ()
        self._drawn = Drawn()
        self._began = 0.0
        """When the first round began, less the time that a run which is resumed was not there."""
        self._going_on = asyncio.Event()
        self._going_on.set()
        self.waiting = Waiting()
        self._counting: Counting | None = None
        self._known: Known | None = None
        self._test_shares: tuple[int, ...] = ()
        """How many test samples each worker holds: all of them the same ones, or in a horizontal federation others."""
        self._evaluation_batches = 0
        self._started = self._ending = False
        self._process = psutil.Process()

    def take_up(self, resumed: Resumed) -> None:
        """Go on from where a run was cut off, before it starts; workers may have joined by now."""
        self._resumed, self.record = resumed, resumed.state.record()
        self._disturbances = Disturbances(self._disturbances.patience, self.record, self._journal.say)
        for counted, earlier in zip((self.bytes_up, self.bytes_down), resumed.state.traffic, strict=True):
            counted.update(earlier)
        self.bytes_peer = self._bytes_peer_before = self.record.bytes_peer

    async def gather(self) -> Setting:
        """Wait until everybody has joined; return what is then known."""
        timeout = self._federation.join_timeout
        self._journal.state("waiting")
        await self._all_there(timeout, lambda: f"after {timeout:g} s workers {self.membership.missing} have not joined")
        self._started = True
        self.membership.start()
        members = list(self.membership)
        self._held = tuple(map(holding, members))
        if self._resumed is not None:
            check_held(self._resumed, self._held)
        check_samples(self._config, members)
        self._test_shares = tuple(member.test_samples for member in members)
        setting = setting_of(self._config, members)
        self._topology = setting.topology
        self._known = Known.of(setting, members)
        return setting

    async def conduct(self, setting: Setting, observer: Observer) -> None:
        """Play all rounds that are left, showing each to the observer, and evaluate on test samples if any are held."""
        parameters = Parameters(setting, self._config.training)
        numbered = self._batches(setting)
        if self._resumed is not None:
            parameters.restore(self._resumed.state.version, self._resumed.tensors)
            self.record.model = parameters.current
        await self._first_start(parameters)
        self._journal.state("running")
        self._began = time.monotonic() - self.record.seconds
        if self._resumed is not None:
            self._disturbances.resumed(self._resumed)
        watching = Watching(observer, self._checkpoints)
        try:
            await self._play(setting, parameters, numbered, watching)
            await self._evaluate(setting, parameters)
        finally:
            went_well = await watching.over()
            self._close_record()
            if went_well and self._checkpoints.wanted(self.record):
                await asyncio.to_thread(self._checkpoints.write, *self._state(parameters))

    async def _play(
        self,
        setting: Setting,
        parameters: Parameters,
        numbered: Iterator[tuple[int, Tensor]],
        watching: Watching,
    ) -> None:
        if await self._enough(setting, parameters):
            return
        # Frozen parameters do not wait for a round's gradients, so the next one is ordered while these arrive.
        ahead = AHEAD if setting.frozen else 1
        uploads = partial(self._uploads, ahead, numbered, parameters)
        for number in range(self.record.rounds + 1, setting.rounds + 1):
            await self.waiting.until(self._going_on.wait(), None, str)
            await self._undisturbed(uploads, parameters)
            observation = self._finish(self._begun.popleft(), parameters)
            if not observation.complete and self._federation.when_withheld == "end":
                self.record.losses.pop()
                break
            # The observer looks at one round while the workers compute the next, and never lags further behind.
            await self._caught_up(watching)
            # Both it and new parameters for the workers copy all that there is, and these are waited for.
            watching.show(observation, 0.0 if setting.frozen else self.record.last_round_seconds)
            self._step(setting, observation, parameters)
            if await self._enough(setting, parameters):
                break
            if self._checkpoints.due(number):
                watching.keep(*self._state(parameters))
        await self._caught_up(watching)

    def _batches(self, setting: Setting) -> Iterator[tuple[int, Tensor]]:
        """Return the batches of the rounds that are left, and their numbers."""
        drawn = batches_of(setting)
        for indices in islice(drawn, self.record.rounds):
            self._drawn.add(indices)
        if self._resumed is not None:
            check_drawn(self._resumed, self._drawn)
        return enumerate(drawn, start=self.record.rounds + 1)

    def _step(self, setting: Setting, observation: Observation, parameters: Parameters) -> None:
        """Take a round's step, and note that the round is done."""
        number, record = observation.round, self.record
        parameters.update(number, observation.gradients)
        self._drawn.add(observation.indices)
        record.rounds = number
        record.rates.append(parameters.rate(number))
        record.model = parameters.current
        record.ends.append(time.monotonic())
        record.memory.append(self._process.memory_info().rss)
        self._journal.round(number, setting.rounds, record.losses[-1], record.rates[-1], self._traffic)

    async def _enough(self, setting: Setting, parameters: Parameters) -> bool:
        """Evaluate if that is due after the last round, and tell whether training may end with it."""
        number, every = self.record.rounds, self._config.training.evaluate_every
        if not number or every is None or number % every:
            return False
        await self._evaluate(setting, parameters)
        self.record.stopped_early = number < setting.rounds and has_converged(self._config, self.record)
        return self.record.stopped_early

    async def _caught_up(self, watching: Watching) -> None:
        if watching.task is not None:
            await self.waiting.until(watching.task, None, str)

    def _state(self, parameters: Parameters) -> tuple[State, dict[str, Tensor]]:
        """Return all that it takes to go on after the last whole round."""
        state = State(
            config=json.loads(self._config.model_dump_json()),
            held=self._held,
            known=self._known,
            generations=self.membership.generations,
            version=parameters.version,
            drawn=str(self._drawn),
            federation=time.monotonic() - self._began,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            bytes_peer=self.bytes_peer,
            **of_record(self.record),
        )
        return state, parameters.tensors()

    def pause(self) -> None:
        """Begin no further round until `resume`; the workers stay, and what is under way is finished."""
        if not self.paused:
            self._going_on.clear()
            self._journal.state("paused")

    def resume(self) -> None:
        """Go on after a pause."""
        if self.paused:
            self._going_on.set()
            self._journal.state("running")

    @property
    def paused(self) -> bool:
        """Whether the next round waits for `resume`."""
        return not self._going_on.is_set()

    def vanish(self) -> None:
        """Prepare to go without a word: the workers are to wait for a coordinator that resumes the run."""
        self._ending = True

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
                await asyncio.wait_for(self.membership.empty.wait(), timeout=10.0)

    def give_up(self, error: CafeError) -> None:
        """End the run because somebody who belongs to the coordinator cannot go on."""
        self.waiting.fail(error)

    def interrupt(self) -> None:
        """End the run because a person asks for it."""
        self.waiting.fail(InterruptedRunError("stopped before the end"))

    def evaluated(self, member: Member, evaluation: Evaluation) -> None:
        """Take what a worker counted on test samples."""
        if evaluation.run_id != self.run_id:
            raise RefusedError(grpc.StatusCode.ABORTED, "that evaluation was begun anew")
        if self._counting is None:
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, "no evaluation of that number is on")
        self._counting.put(member.worker, evaluation)

    def troubled(self, member: Member, trouble: Trouble) -> None:
        """Hear that a worker cannot go on, with the round or with the run."""
        if not self._started:
            return  # before the start a worker may leave and come back
        if trouble.leaving or not self._disturbances.patience:
            self.waiting.fail(RunFailedError(in_trouble(member, trouble.reason)))
        elif self.run_id and trouble.run_id == self.run_id:
            self._disturbances.trouble(member, trouble.reason)

    def exchanged(self, member: Member, peer_bytes: int) -> None:
        """Hear from the label holder how many bytes went between workers since it joined."""
        if self._topology.serves_peers(member.worker):
            self.bytes_peer = self._bytes_peer_before + peer_bytes

    async def _first_start(self, parameters: Parameters) -> None:
        self.waiting.check()
        if self._disturbances.happened.done():  # since all had joined
            await self._mend(parameters)
        else:
            self._start(parameters)

    def _start(self, parameters: Parameters) -> None:
        holder = self._topology.label_holder
        self.run_id = secrets.token_hex(8)
        members = {member.worker: member for member in self.membership}
        start = Start(
            run_id=self.run_id,
            workers=self._topology.parties,
            label_holder=holder,
            label_holder_address="" if self._topology.is_horizontal else members[holder].address,
            classes=members[holder].classes,
            output_widths=parameters.output_widths,
        )
        for member in members.values():
            member.send(Order(start=start))

    def _begin(self, number: int, indices: Tensor, parameters: Parameters) -> "_Begun":
        expected = {w: parameters.expected_from(w) for w in range(self._topology.parties)}
        self.inboxes[number] = inbox = Inbox(number, expected, self._topology)
        rows = dict(enumerate(self._topology.rows_of_each(indices)))
        self._order(number, Purpose.PURPOSE_TRAIN, rows, parameters)
        return _Begun(number, indices, inbox)

    async def _undisturbed(self, do: Callable[[], Awaitable[None]], parameters: Parameters) -> None:
        """Do something with all workers, again and again until nobody is lost on the way."""
        while True:
            try:
                if self._disturbances.happened.done():  # whoever has come back since is to have a start first
                    raise DisturbedError
                await do()
            except DisturbedError:
                await self._mend(parameters)
            else:
                self._disturbances.round_done()
                return

    async def _mend(self, parameters: Parameters) -> None:
        """Wait until all workers are there, and let them begin the unfinished rounds anew."""
        timeout = self._disturbances.patience
        while self._disturbances.happened.done() or self.membership.missing:
            await self._disturbances.settle(lambda: self.membership.missing)
            await self._all_there(
                timeout, lambda: f"after {timeout:g} s workers {self.membership.missing} have not come back"
            )
        self._start(parameters)
        self._begun = deque(self._begin(one.number, one.indices, parameters) for one in self._begun)
        self._disturbances.mended(len(self._begun))

    async def _all_there(self, timeout: float, late: Callable[[], str]) -> None:
        deadline = time.monotonic() + timeout
        while self.membership.missing:  # whoever completes them may have left when this wakes up
            await self.waiting.until(self.membership.complete.wait(), deadline - time.monotonic(), late)

    async def _uploads(self, ahead: int, numbered: Iterator[tuple[int, Tensor]], parameters: Parameters) -> None:
        """Begin as many rounds as may be under way, and wait for all uploads of the oldest."""
        coming = islice(numbered, ahead - len(self._begun))
        self._begun.extend(self._begin(*one, parameters) for one in coming)
        begun, timeout = self._begun[0], self._federation.round_timeout
        await self.waiting.until(
            begun.inbox.full.wait(),
            timeout,
            lambda: f"workers {begun.inbox.missing} uploaded nothing for round {begun.number} in {timeout:g} s",
            self._disturbances.happened,
        )

    def _finish(self, begun: "_Begun", parameters: Parameters) -> Observation:
        number, inbox = begun.number, begun.inbox
        del self.inboxes[number]
        uploads = inbox.uploads
        self.record.bytes_raw += sum(raw_bytes(upload.gradients.values()) for upload in uploads.values())
        # Between the workers: each output to the label holder, and a gradient of the same size back.
        self.record.bytes_raw += 2 * 4 * len(begun.indices) * self._peers_outputs(parameters)
        for worker, upload in uploads.items():
            if upload.withheld is not None and worker not in self.record.withheld:
                self.record.withheld[worker] = number
                self._journal.worker(worker, "withheld")
                if self._federation.when_withheld == "end":
                    self.record.ended = f"worker {worker} withheld its upload for round {number}: {upload.withheld}"
        observation, loss = seen(number, begun.indices, uploads, parameters, topology=self._topology)
        self.record.losses.append(loss)
        return observation

    async def _evaluate(self, setting: Setting, parameters: Parameters) -> None:
        """Let the workers count on the test samples, if there are any and they have not just done so."""
        samples = sum(self._test_shares) if self._topology.is_horizontal else self._test_shares[0]
        if not samples or self.record.last_evaluation:
            return
        correct, loss = 0, 0.0
        for start in range(0, max(self._test_shares), EVALUATION_BATCH):
            # Numbers beyond the training rounds': at the label holder no output is taken for another round's.
            self._evaluation_batches += 1
            number = setting.rounds + self._evaluation_batches
            batches = {w: torch.arange(n)[start : start + EVALUATION_BATCH] for w, n in enumerate(self._test_shares)}
            rows = {worker: batch for worker, batch in batches.items() if len(batch)}
            await self._undisturbed(partial(self._counted, number, rows, parameters), parameters)
            self.record.bytes_raw += 4 * max(map(len, rows.values())) * self._peers_outputs(parameters)
            assert self._counting is not None
            correct += self._counting.correct
            loss += self._counting.loss_sum
        self.record.evaluations.append(Evaluated(self.record.rounds, loss / samples, correct / samples))
        self._journal.evaluation(self.record.rounds, loss / samples, correct / samples)

    async def _counted(self, number: int, rows: Mapping[int, Tensor], parameters: Parameters) -> None:
        """Have a batch of test samples counted."""
        timeout = self._federation.round_timeout
        totals = {worker: len(own) for worker, own in rows.items() if self._topology.holds_labels(worker)}
        self._counting = counting = Counting(number, totals)
        self._order(number, Purpose.PURPOSE_EVALUATE, rows, parameters)
        await self.waiting.until(
            counting.done, timeout, lambda: f"no evaluation came in {timeout:g} s", self._disturbances.happened
        )

    def _peers_outputs(self, parameters: Parameters) -> int:
        """Return how many numbers a sample's outputs have that go to the label holder."""
        widths = enumerate(parameters.output_widths)
        return sum(width for worker, width in widths if self._topology.sends_outputs(worker))

    def _order(self, number: int, purpose: Purpose, rows: Mapping[int, Tensor], parameters: Parameters) -> None:
        """Tell each worker that has rows to play a round on them."""
        named = {worker: own.tolist() for worker, own in rows.items()}
        for member in self.membership:
            if member.worker not in named:
                continue
            if member.parameters_version != parameters.version:
                tensors = parameters.expected_from(member.worker)
                announced = ParametersOrder(version=parameters.version, bundle=announce(tensors))
                member.send_tensors(Order(parameters=announced), tensors)
                member.parameters_version = parameters.version
                self.record.bytes_raw += raw_bytes(tensors.values())
            play = Round(round=number, purpose=purpose, parameters_version=parameters.version)
            play.indices.extend(named[member.worker])
            member.send(Order(round=play))

    def _joined(self, member: Member) -> None:
        self._journal.worker(member.worker, "rejoined" if member.generation else "joined")

    def _left(self, member: Member) -> None:
        if not self._ending:
            self._journal.worker(member.worker, "lost")
        if self._ending or not self._started:
            return  # before the start a worker may leave and come back
        if self._topology.serves_peers(member.worker):
            self._bytes_peer_before = self.bytes_peer
        if self._disturbances.patience and not member.refusal:
            self._disturbances.left(member)
            return
        reason = f"worker {member.worker} left in round {self.record.rounds + 1}"
        if member.refusal:
            reason += f" after a refused upload: {member.refusal}"
        self.waiting.fail(WorkerLeftError(member.worker, reason))

    def _close_record(self) -> None:
        self.record.seconds = time.monotonic() - self._began
        self.record.bytes_up, self.record.bytes_down = self.bytes_up.total(), self.bytes_down.total()
        self.record.bytes_peer = self.bytes_peer

    def _traffic(self) -> dict[str, Any]:
        """Return the bytes so far as the journal has them."""
        up, down = self.bytes_up, self.bytes_down
        return {
            "bytes": {"up": up.total(), "down": down.total(), "peer": self.bytes_peer},
            "workers": [{"id": w, "up": up[w], "down": down[w]} for w in range(self._topology.parties)],
        }
