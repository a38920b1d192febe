"""A run as the coordinator conducts it: wait for the workers, play the rounds, evaluate, end."""

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
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
from server.disturbances import Disturbances, DisturbedError, WorkerLeftError, in_trouble
from server.inbox import Inbox
from server.membership import Member, Membership, RefusedError
from server.parameters import Parameters, gradients_of_round
from server.schedule import batches
from server.stopping import no_longer_improves
from vfl.config import RunConfig
from vfl.errors import CafeError, InterruptedRunError, RunFailedError, UserError
from vfl.observation import Observation, Setting
from vfl.results import Evaluated, Record

EVALUATION_BATCH = 256

Observer = Callable[[Observation], None]


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
        on_round: Callable[[int, int, float], None],
        rejoin_timeout: float = 0.0,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._config, self._on_round = config, on_round
        self._federation = config.federation
        self.membership = Membership(
            self._federation.workers, self._federation.label_holder, self._left, returning=rejoin_timeout > 0
        )
        self.inboxes: dict[int, Inbox] = {}
        self.record = Record()
        self._disturbances = Disturbances(rejoin_timeout, self.record, say)
        self._begun: deque[_Begun] = deque()
        self.run_id = ""
        self.bytes_up = self.bytes_down = self.bytes_peer = 0
        self._bytes_peer_before = 0
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._evaluation: asyncio.Future[Evaluation] | None = None
        self._evaluating = Round()
        self._test_samples = self._evaluation_batches = 0
        self._started = self._ending = False
        self._process = psutil.Process()

    async def gather(self) -> Setting:
        """Wait until everybody has joined; return what is then known."""
        timeout = self._federation.join_timeout
        await self._all_there(timeout, lambda: f"after {timeout:g} s workers {self.membership.missing} have not joined")
        self._started = True
        self.membership.start()
        members = list(self.membership)
        samples = members[0].samples
        if self._federation.batch_size > samples:
            size = self._federation.batch_size
            raise UserError(f"federation.batch_size: {size} is more than the {samples} samples")
        self._test_samples = members[0].test_samples
        if self._config.training.evaluate_every and not self._test_samples:
            raise UserError("training.evaluate_every: the workers hold no test samples to evaluate on")
        return Setting(
            model=self._config.model,
            boxes=tuple(member.box for member in members),
            classes=members[self._federation.label_holder].classes,
            samples=samples,
            batch_size=self._federation.batch_size,
            schedule=self._federation.schedule,
            rounds=self._federation.planned_rounds(samples),
            frozen=self._config.training.frozen,
            seed=self._config.seed,
            device=self._config.device,
        )

    async def conduct(self, setting: Setting, observer: Observer) -> None:
        """Play all rounds, showing each to the observer, and evaluate on test samples where there are any."""
        parameters = Parameters(setting, self._config.training)
        await self._first_start(parameters)
        began = time.monotonic()
        watching: asyncio.Task[None] | None = None
        every = self._config.training.evaluate_every
        try:
            drawn = batches(setting.schedule, setting.samples, setting.batch_size, setting.rounds, setting.seed)
            numbered = enumerate(drawn, start=1)
            # Frozen parameters do not wait for a round's gradients, so the next one is ordered while these arrive.
            ahead = AHEAD if setting.frozen else 1
            self._begun.extend(self._begin(*coming, parameters) for coming in islice(numbered, ahead - 1))
            for number in range(1, setting.rounds + 1):
                self._begun.extend(self._begin(*coming, parameters) for coming in islice(numbered, 1))
                await self._undisturbed(self._uploads, parameters)
                observation = self._finish(self._begun.popleft(), parameters)
                if not observation.complete and self._federation.when_withheld == "end":
                    self.record.losses.pop()
                    break
                # The observer looks at one round while the workers compute the next, and never lags further behind.
                if watching is not None:
                    await self._or_failure(watching, None, str)
                watching = asyncio.create_task(asyncio.to_thread(observer, observation))
                parameters.update(number, observation.gradients)
                self.record.rounds = number
                self.record.rates.append(parameters.rate(number))
                self.record.model = parameters.current
                self.record.ends.append(time.monotonic())
                self.record.memory.append(self._process.memory_info().rss)
                self._on_round(number, setting.rounds, self.record.losses[-1])
                if every is not None and number % every == 0:
                    await self._evaluate(setting, parameters)
                    if number < setting.rounds and self._has_converged():
                        self.record.stopped_early = True
                        break
            if watching is not None:
                await self._or_failure(watching, None, str)
                watching = None
            await self._evaluate(setting, parameters)
        finally:
            if watching is not None:
                await asyncio.wait([watching])
            self._close_record(time.monotonic() - began)

    async def end(self, reason: str | None) -> None:
        """Say good-bye to all workers (with the reason, if the run failed) and wait for them to hang up."""
        self._ending = self.membership.closed = True
        last = Order(end=End(rounds=self.record.rounds)) if reason is None else Order(abort=Abort(reason=reason))
        members = list(self.membership)
        for member in members:
            member.send(last)
            member.hang_up()
        if members:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.membership.empty.wait(), timeout=10.0)

    def interrupt(self) -> None:
        """End the run because a person asks for it."""
        self._fail(InterruptedRunError("stopped before the end"))

    def evaluated(self, member: Member, evaluation: Evaluation) -> None:
        """Take what the label holder counted."""
        if evaluation.run_id != self.run_id:
            raise RefusedError(grpc.StatusCode.ABORTED, "that evaluation was begun anew")
        asked = self._evaluation
        if asked is None or asked.done() or evaluation.round != self._evaluating.round:
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, "no evaluation of that number is on")
        if member.worker != self._federation.label_holder:
            raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, f"worker {member.worker} is not the label holder")
        total = len(self._evaluating.indices)
        if evaluation.total != total or evaluation.correct > total:
            raise RefusedError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{evaluation.correct} of {evaluation.total} right, expected of {total}",
            )
        asked.set_result(evaluation)

    def troubled(self, member: Member, trouble: Trouble) -> None:
        """Hear that a worker cannot go on, with the round or with the run."""
        if trouble.leaving or not self._disturbances.patience:
            self._fail(RunFailedError(in_trouble(member, trouble.reason)))
        elif self.run_id and trouble.run_id == self.run_id:
            self._disturbances.trouble(member, trouble.reason)

    def exchanged(self, member: Member, peer_bytes: int) -> None:
        """Hear from the label holder how many bytes went between workers since it joined."""
        if member.worker == self._federation.label_holder:
            self.bytes_peer = self._bytes_peer_before + peer_bytes

    async def _first_start(self, parameters: Parameters) -> None:
        if self._failure.done():
            self._failure.result()
        if self._disturbances.happened.done():  # since all had joined
            await self._mend(parameters)
        else:
            self._start(parameters)

    def _start(self, parameters: Parameters) -> None:
        holder = self._federation.label_holder
        self.run_id = secrets.token_hex(8)
        members = {member.worker: member for member in self.membership}
        start = Start(
            run_id=self.run_id,
            workers=self._federation.workers,
            label_holder=holder,
            label_holder_address=members[holder].address,
            classes=members[holder].classes,
            output_widths=parameters.output_widths,
        )
        for member in members.values():
            member.send(Order(start=start))

    def _begin(self, number: int, indices: Tensor, parameters: Parameters) -> "_Begun":
        holder = self._federation.label_holder
        expected = {w: parameters.expected_from(w, holder) for w in range(self._federation.workers)}
        self.inboxes[number] = inbox = Inbox(number, expected, holder)
        self._order(number, Purpose.PURPOSE_TRAIN, indices, parameters)
        return _Begun(number, indices, inbox)

    async def _undisturbed(self, do: Callable[[], Awaitable[None]], parameters: Parameters) -> None:
        """Do something with all workers, again and again until nobody is lost on the way."""
        while True:
            try:
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
            await self._or_failure(self.membership.complete.wait(), deadline - time.monotonic(), late)

    async def _uploads(self) -> None:
        """Wait for all uploads of the oldest round that is under way."""
        begun, timeout = self._begun[0], self._federation.round_timeout
        await self._or_failure(
            begun.inbox.full.wait(),
            timeout,
            lambda: f"workers {begun.inbox.missing} uploaded nothing for round {begun.number} in {timeout:g} s",
            self._disturbances.happened,
        )

    def _finish(self, begun: "_Begun", parameters: Parameters) -> Observation:
        number, inbox = begun.number, begun.inbox
        del self.inboxes[number]
        uploads, holder = inbox.uploads, self._federation.label_holder
        gradients = gradients_of_round({w: upload.gradients for w, upload in uploads.items()}, len(uploads), holder)
        self.record.bytes_raw += sum(raw_bytes(upload.gradients.values()) for upload in uploads.values())
        # Between the workers: each output to the label holder, and a gradient of the same size back.
        self.record.bytes_raw += 2 * 4 * len(begun.indices) * self._peers_outputs(parameters)
        for worker, upload in uploads.items():
            if upload.withheld is not None and worker not in self.record.withheld:
                self.record.withheld[worker] = number
                if self._federation.when_withheld == "end":
                    self.record.ended = f"worker {worker} withheld its upload for round {number}: {upload.withheld}"
        loss = uploads[holder].loss
        assert loss is not None
        self.record.losses.append(loss)
        return Observation(number, begun.indices, parameters.version, parameters.current, gradients)

    async def _evaluate(self, setting: Setting, parameters: Parameters) -> None:
        """Let the workers count on the test samples, if there are any and they have not just done so."""
        samples = self._test_samples
        if not samples or self.record.last_evaluation:
            return
        correct, loss = 0, 0.0
        for indices in torch.arange(samples).split(EVALUATION_BATCH):
            # Numbers beyond the training rounds': at the label holder no output is taken for another round's.
            self._evaluation_batches += 1
            number = setting.rounds + self._evaluation_batches
            await self._undisturbed(partial(self._counted, number, indices, parameters), parameters)
            self.record.bytes_raw += 4 * len(indices) * self._peers_outputs(parameters)
            assert self._evaluation is not None
            correct += self._evaluation.result().correct
            loss += self._evaluation.result().loss_sum
        self.record.evaluations.append(Evaluated(self.record.rounds, loss / samples, correct / samples))

    async def _counted(self, number: int, indices: Tensor, parameters: Parameters) -> None:
        """Have a batch of test samples counted."""
        timeout = self._federation.round_timeout
        self._evaluation = asyncio.get_running_loop().create_future()
        self._evaluating = self._order(number, Purpose.PURPOSE_EVALUATE, indices, parameters)
        await self._or_failure(
            self._evaluation, timeout, lambda: f"no evaluation came in {timeout:g} s", self._disturbances.happened
        )

    def _has_converged(self) -> bool:
        rule, record = self._config.training.early_stop, self.record
        # What was evaluated before the first step says nothing of training.
        losses = [one.loss for one in record.evaluations if any(record.rates[: one.round])]
        return rule is not None and no_longer_improves(losses, rule)

    def _peers_outputs(self, parameters: Parameters) -> int:
        """Return how many numbers a sample's outputs have that go to the label holder."""
        holder = self._federation.label_holder
        return sum(width for worker, width in enumerate(parameters.output_widths) if worker != holder)

    def _order(self, number: int, purpose: Purpose, indices: Tensor, parameters: Parameters) -> Round:
        play = Round(round=number, purpose=purpose, parameters_version=parameters.version, indices=indices.tolist())
        for member in self.membership:
            if member.parameters_version != parameters.version:
                tensors = parameters.expected_from(member.worker, self._federation.label_holder)
                announced = ParametersOrder(version=parameters.version, bundle=announce(tensors))
                member.send_tensors(Order(parameters=announced), tensors)
                member.parameters_version = parameters.version
                self.record.bytes_raw += raw_bytes(tensors.values())
            member.send(Order(round=play))
        return play

    def _left(self, member: Member) -> None:
        if self._ending or not self._started:
            return  # before the start a worker may leave and come back
        if member.worker == self._federation.label_holder:
            self._bytes_peer_before = self.bytes_peer
        if self._disturbances.patience and not member.refusal:
            self._disturbances.left(member)
            return
        reason = f"worker {member.worker} left in round {self.record.rounds + 1}"
        if member.refusal:
            reason += f" after a refused upload: {member.refusal}"
        self._fail(WorkerLeftError(member.worker, reason))

    def _fail(self, error: CafeError) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # seen: asyncio need not warn when nobody is waiting any more

    async def _or_failure(
        self,
        ready: Awaitable[Any],
        timeout: float | None,
        late: Callable[[], str],
        disturbed: "asyncio.Future[None] | None" = None,
    ) -> None:
        """Wait for something, but no longer than until the run fails, is disturbed, or the time is up."""
        # What is a future already (an evaluation, the observer's thread) outlives this wait, a mere wait does not.
        task = asyncio.shield(ready) if isinstance(ready, asyncio.Future) else asyncio.ensure_future(ready)
        awaited = {task, self._failure} | ({disturbed} if disturbed else set())
        done, _ = await asyncio.wait(awaited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task not in done:
            task.cancel()
        if self._failure in done:
            self._failure.result()
        if not done:
            raise RunFailedError(late())
        if task not in done:
            raise DisturbedError
        task.result()

    def _close_record(self, seconds: float) -> None:
        self.record.seconds = seconds
        self.record.bytes_up, self.record.bytes_down = self.bytes_up, self.bytes_down
        self.record.bytes_peer = self.bytes_peer
