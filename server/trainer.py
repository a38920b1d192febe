"""The rounds of a run: draw a batch, order it, wait for the uploads, show them to the observer, take the step.

A malicious coordinator asks its attack before each round, and orders what that proposes instead.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import psutil
from torch import Tensor

from attacker.interface import Proposal
from protos.codec import raw_bytes
from protos.coordinator_pb2 import Purpose
from server.background import Background
from server.checkpoint import Checkpoints, Known, State, holding
from server.checkpoint.resume import check_drawn
from server.evaluation import Evaluator
from server.inbox import Inbox
from server.parameters import Parameters, gradients_of_round
from server.session import Session
from vfl.config import RunConfig
from vfl.folder.journal import Journal
from vfl.observation import Observation, Observer, Setting, Tensors, averaged
from vfl.observation.schedule import Drawn, batches_of
from vfl.topology import Topology

AHEAD = 2
"""Rounds that are under way at once while the parameters are frozen."""


Proposer = Callable[[int], Proposal | None]


@dataclass(frozen=True)
class _Begun:
    """A round that the workers have been ordered to play."""

    number: int
    indices: Tensor
    inbox: Inbox


class Trainer:
    """Trains with the workers of a session, from where its record ends."""

    def __init__(
        self,
        config: RunConfig,
        setting: Setting,
        session: Session,
        checkpoints: Checkpoints,
        *,
        journal: Journal,
        propose: Proposer | None = None,
    ) -> None:
        """Prepare; a malicious coordinator's attack can `propose`."""
        self._propose = propose if config.is_malicious else None
        self._pretends = False
        """Whether the round under way is played with an attack's parameters."""
        self._config, self._setting, self._session = config, setting, session
        self._checkpoints, self._journal, self._record = checkpoints, journal, session.record
        self._parameters = Parameters(setting, config.training)
        self._evaluator = Evaluator(setting, session, self._parameters, journal)
        self._drawn = Drawn()
        self._begun: deque[_Begun] = deque()
        self._began = 0.0
        """When the first round began, less the time that a run which is resumed was not there."""
        self._process = psutil.Process()

    async def train(self, observer: Observer) -> None:
        """Play all rounds that are left, showing each to the observer, and evaluate on test samples if any are held."""
        session, resumed = self._session, self._session.resumed
        numbered = self._batches()
        if resumed is not None:
            self._parameters.restore(resumed.state.version, resumed.tensors)
            self._record.model = self._parameters.current
        await session.start(self._parameters.output_widths, self._begin_anew)
        self._journal.state("running")
        self._began = time.monotonic() - self._record.seconds
        if resumed is not None:
            self._record.disturbances.append(resumed.disturbance)
        background = Background(observer, self._checkpoints)
        try:
            if self._config.training.evaluate_first and not self._record.rounds:
                await self._evaluator.evaluate()
            if not await self._enough():
                await self._play(numbered, background)
            await self._evaluator.evaluate()
        finally:
            went_well = await background.over()
            self._close_record()
            if went_well and self._checkpoints.wanted(self._record):
                await asyncio.to_thread(self._checkpoints.write, *self._state())

    async def _play(self, numbered: Iterator[tuple[int, Tensor]], background: Background) -> None:
        frozen, failure = self._setting.frozen, self._session.failure
        while self._record.rounds < self._setting.rounds:
            await failure.until(self._session.pause.over(), None, str)
            if self._propose is not None:
                await background.caught_up(failure)
            await self._session.undisturbed(lambda: self._order_and_wait(numbered))
            observation = self._observe(self._begun.popleft())
            if not observation.complete and self._config.federation.when_withheld == "end":
                self._record.train.losses.pop()
                break
            # The observer looks at one round while the workers compute the next, and never lags further behind.
            await background.caught_up(failure)
            # It copies a whole model, and so does sending new parameters, which goes first: the workers wait for them.
            background.show(observation, 0.0 if frozen else self._record.last_round_seconds)
            self._step(observation)
            if await self._enough():
                break
            if self._checkpoints.due(observation.round):
                background.keep(*self._state())
        await background.caught_up(failure)

    def _batches(self) -> Iterator[tuple[int, Tensor]]:
        """Return the batches of the rounds that are left, and their numbers."""
        drawn = batches_of(self._setting)
        for indices in islice(drawn, self._record.rounds):
            self._drawn.add(indices)
        if self._session.resumed is not None:
            check_drawn(self._session.resumed, self._drawn)
        return enumerate(drawn, start=self._record.rounds + 1)

    async def _order_and_wait(self, numbered: Iterator[tuple[int, Tensor]]) -> None:
        """Draw and order as many rounds as may be under way, and wait for all uploads of the oldest."""
        # Frozen parameters do not wait for a round's gradients, so the next one is ordered while these arrive.
        ahead = AHEAD if self._setting.frozen and self._propose is None else 1
        for number, indices in islice(numbered, ahead - len(self._begun)):
            chosen = indices if self._propose is None else await self._chosen(self._propose, number, indices)
            self._begun.append(self._order(number, chosen))
        oldest = self._begun[0]
        await self._session.wait_for(
            oldest.inbox.full.wait(),
            lambda: f"workers {oldest.inbox.missing} uploaded nothing for round {oldest.number}",
        )

    async def _chosen(self, propose: Proposer, number: int, drawn: Tensor) -> Tensor:
        """Return the batch that the attack wants, and let the parameters that it wants be in force."""
        proposal = await self._session.failure.for_thread(propose, number)
        if proposal is None:
            return drawn
        if proposal.parameters is not None:
            evaluates = self._config.training.evaluate_first or self._config.training.evaluate_every is not None
            self._parameters.pretend(proposal.parameters, sent=evaluates)
            self._pretends = True
        return drawn if proposal.indices is None else proposal.indices

    def _order(self, number: int, indices: Tensor) -> _Begun:
        topology, parameters = self._setting.topology, self._parameters
        expected = {party: parameters.expected_from(party) for party in range(topology.parties)}
        self._session.answers.inboxes[number] = inbox = Inbox(number, expected, topology)
        rows = dict(enumerate(topology.rows_of_each(indices)))
        self._session.order(number, Purpose.PURPOSE_TRAIN, rows, parameters)
        return _Begun(number, indices, inbox)

    def _begin_anew(self) -> int:
        """Order the unfinished rounds again; return how many there are."""
        self._begun = deque(self._order(one.number, one.indices) for one in self._begun)
        return len(self._begun)

    def _observe(self, begun: _Begun) -> Observation:
        """Take what a round's uploads show, and note its loss and the workers that withheld theirs."""
        number, record = begun.number, self._record
        uploads = self._session.answers.inboxes.pop(number).uploads
        record.bytes.raw += sum(raw_bytes(upload.gradients.values()) for upload in uploads.values())
        # Between the workers: each output to the label holder, and a gradient of the same size back.
        record.bytes.raw += 2 * 4 * len(begun.indices) * self._evaluator.peers_outputs
        for worker, upload in uploads.items():
            if upload.withheld is not None and worker not in record.withheld:
                record.withheld[worker] = number
                self._journal.worker(worker, "withheld")
                if self._config.federation.when_withheld == "end":
                    record.ended = f"worker {worker} withheld its upload for round {number}: {upload.withheld}"
        topology = self._setting.topology
        losses = {worker: upload.loss for worker, upload in uploads.items() if upload.loss is not None}
        record.train.losses.append(_loss(losses, begun.indices, topology))
        given = {worker: upload.gradients for worker, upload in uploads.items()}
        return _observation(begun, given, self._parameters, topology)

    def _step(self, observation: Observation) -> None:
        """Take a round's step, and note that the round is done."""
        number, record, parameters = observation.round, self._record, self._parameters
        if self._pretends:
            parameters.be_true()
            self._pretends = False
        else:
            parameters.update(number, observation.gradients)
        self._drawn.add(observation.indices)
        record.rounds = number
        record.train.rates.append(parameters.rate(number))
        record.model = parameters.current
        record.ends.append(record.elapsed)
        record.memory.append(self._process.memory_info().rss)
        traffic = self._session.traffic.for_journal
        loss, rate = record.train.losses[-1], record.train.rates[-1]
        self._journal.round(number, self._setting.rounds, loss=loss, rate=rate, traffic=traffic)

    async def _enough(self) -> bool:
        """Evaluate if that is due after the last round, and tell whether training may end with it."""
        number, training = self._record.rounds, self._config.training
        if not number or training.evaluate_every is None or number % training.evaluate_every:
            return False
        await self._evaluator.evaluate()
        enough = number < self._setting.rounds and self._record.has_converged(training.early_stop)
        self._record.train.stopped_early = enough
        return enough

    def _state(self) -> tuple[State, dict[str, Tensor]]:
        """Return all that it takes to go on after the last whole round."""
        session = self._session
        self._close_record()
        state = State(
            config=json.loads(self._config.model_dump_json()),
            held=tuple(map(holding, session.members)),
            known=Known.of(self._setting, session.members),
            generations=session.membership.generations,
            version=self._parameters.version,
            drawn=str(self._drawn),
            at=time.time(),
            seconds=self._record.elapsed,
            record=self._record.of_whole_rounds(),
            bytes_up=session.traffic.up,
            bytes_down=session.traffic.down,
        )
        return state, self._parameters.tensors()

    def _close_record(self) -> None:
        record, traffic = self._record, self._session.traffic
        record.seconds = time.monotonic() - self._began
        wire = record.bytes
        wire.up, wire.down, wire.peer = traffic.up.total(), traffic.down.total(), traffic.peer


def _observation(
    begun: _Begun, given: Mapping[int, Tensors], parameters: Parameters, topology: Topology
) -> Observation:
    """Put the gradients of all workers together: parts of one model's, or in a horizontal federation their average."""
    version, current = parameters.version, parameters.current
    if not topology.is_horizontal:
        gradients = gradients_of_round(given, topology.bottoms, topology.label_holder)
        return Observation(begun.number, begun.indices, version, current, gradients)
    uploads = tuple(gradients_of_round({0: given[worker]}, 1, 0) for worker in range(topology.workers))
    sizes = [len(rows) for rows in topology.rows_of_each(begun.indices)]
    return Observation(begun.number, begun.indices, version, current, averaged(uploads, sizes), uploads)


def _loss(losses: Mapping[int, float], indices: Tensor, topology: Topology) -> float:
    """Return a batch's mean loss, from what each party with labels reported."""
    if not topology.is_horizontal:
        return losses[topology.label_holder]
    sizes = [len(rows) for rows in topology.rows_of_each(indices)]
    return sum(size * losses[worker] for worker, size in enumerate(sizes)) / len(indices)
