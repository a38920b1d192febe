"""A federation and its attack in one process, without sockets: the coordinator's own trainer, the workers' own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacker.driver.conclude import conclude
from attacker.driver.follow import Follower, Snapshots
from attacker.interface import Proposal, Recovery
from attacker.start import start_attack
from protos.coordinator_pb2 import Evaluation, JoinRequest, Purpose, Round, Start
from server.checkpoint import Checkpoints
from server.inbox import Upload
from server.parameters import Parameters
from server.refusal import RefusedError
from server.session import Session
from server.trainer import Trainer
from vfl.config import RunConfig
from vfl.datasets import Data
from vfl.datasets.slices import WorkerData, slice_for
from vfl.errors import RunFailedError
from vfl.folder import clear_run, held, transcript_of
from vfl.folder.journal import Journal
from vfl.folder.record import Record, write_model
from vfl.folder.summary import Defence
from vfl.folder.transcript import TranscriptWriter
from vfl.local.launch import add_to_summary, check, common_secret, known_labels, worker_threads
from vfl.observation import (
    AnyObservation,
    CoalitionObservation,
    ModelTensors,
    Observation,
    PartyObservation,
    Setting,
    united,
)
from vfl.referee import score_run
from worker.checks import OrderChecks, OrderRefusedError
from worker.keys import Secret
from worker.main import defence_plan, join_request
from worker.party import Counted
from worker.rendezvous import Rendezvous
from worker.session import WorkerOptions
from worker.trainer import Trainer as WorkerTrainer

OnRound = Callable[[AnyObservation], None]


@dataclass(frozen=True)
class Simulated:
    """What a simulation ends with, besides the files in its folder."""

    setting: Setting
    recovery: Recovery
    model: ModelTensors | None
    """None where no round was done."""


def simulate(
    config: RunConfig, data: Data, out: Path, on_round: OnRound = lambda _: None, *, fresh: bool = False
) -> Simulated:
    """Run a federation and its attack to the numbers of `cafe run`, bit for bit; leave the same results in `out`."""
    check(config, data)
    out.mkdir(parents=True, exist_ok=True)
    with held(out, fresh=fresh):
        return _simulate(config, data, out, on_round)


def _simulate(config: RunConfig, data: Data, out: Path, on_round: OnRound) -> Simulated:
    threads = torch.get_num_threads()
    clear_run(out)
    journal = Journal(out)
    try:
        rounds = _Rounds(config, data, out, journal=journal, on_round=on_round)
        _run(rounds.play)
        torch.set_num_threads(threads)
        return rounds.conclude()
    finally:
        torch.set_num_threads(threads)
        journal.close()


def _run(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the coordinator's event loop; in another thread where one is running already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(play())
        return
    with ThreadPoolExecutor(1) as other:
        other.submit(asyncio.run, play()).result()


class _Rounds:
    """The run as its coordinator has it."""

    def __init__(self, config: RunConfig, data: Data, out: Path, *, journal: Journal, on_round: OnRound) -> None:
        self._config, self._data, self._out, self._journal, self._on_round = config, data, out, journal, on_round
        self._looks = {seat.worker: _Look() for seat in config.seats}
        """What each curious party has seen; the coordinator's number is None."""
        self._parties = _Parties(config, data, self._looks)
        self._record = Record()
        self._follower: Follower | None = None
        self._recorders: list[TranscriptWriter] = []
        self._asks = False
        """Whether a malicious party asks the attack in each round, which is then shown it at once."""

    async def play(self) -> None:
        """Let all parties join, and play all rounds."""
        session = _Session(self._config, self._journal, self._parties)
        for request in self._parties.requests():
            session.membership.admit(request)
        self._record = session.record
        setting = replace(await session.gather(), labels=known_labels(self._config, self._data))
        if None in self._looks:
            self._looks[None].begin(setting)
        self._journal.run(self._config, setting.samples, setting.rounds)
        checkpoints = Checkpoints(self._out, self._config)
        for party, look in self._looks.items():
            if party is not None and self._config.is_malicious:
                look.ask, self._asks = self._ask, True
        propose = self._propose if self._config.is_malicious and not self._asks else None
        trainer = Trainer(self._config, setting, session, checkpoints, journal=self._journal, propose=propose)
        await trainer.train(self._observe)

    @property
    def _setting(self) -> Setting:
        """Return what the curious parties know together, once all have begun."""
        known = [look.setting for look in self._looks.values()]
        return united([one for one in known if one is not None])

    def _following(self) -> Follower:
        """Return the attack, which starts when all parties have begun."""
        if self._follower is None:
            config, out, setting = self._config, self._out, self._setting
            snapshots = Snapshots(out, setting, config.snapshots)
            self._follower = Follower(start_attack(config.attack, setting), snapshots)
            for party, look in self._looks.items():
                if config.records and look.setting is not None:
                    self._recorders.append(TranscriptWriter(transcript_of(out, config, party), config, look.setting))
        return self._follower

    def _propose(self, number: int) -> Proposal | None:
        """Ask the attack of a malicious coordinator what to order."""
        with self._parties.computing(threads=1):
            return self._following().propose(number)

    def _ask(self, seen: PartyObservation) -> Proposal | None:
        """Show the attack of a malicious party a round, and ask what the party is to send in it."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._show(seen, (seen,))
        proposal = self._following().propose(seen.round)
        torch.set_num_threads(threads)
        return proposal

    def _show(self, seen: AnyObservation, parts: Sequence[PartyObservation]) -> None:
        follower = self._following()
        for recorder, part in zip(self._recorders, parts, strict=False):
            recorder.observe(part)
        for _ in follower.follow([seen]):
            pass

    def _observe(self, observation: Observation) -> None:
        """Show the attack a round, while no worker computes: all share torch's threads and its random numbers."""
        with self._parties.computing(threads=1):  # as in the attack's process while the workers go on
            if None in self._looks:
                self._looks[None].observe(observation)
            parts = tuple(look.seen.pop(observation.round) for look in self._looks.values())
            seen: AnyObservation = parts[0] if len(parts) == 1 else CoalitionObservation(parts)
            if not self._asks:
                self._show(seen, parts)
            self._on_round(seen)

    def conclude(self) -> Simulated:
        """Let the attack recover, and write and score what came of it."""
        out, config, setting, record = self._out, self._config, self._setting, self._record
        write_model(out, record.model)
        recover, journal = self._following().recover, self._journal
        recovery = conclude(recover, record, config=config, setting=setting, out=out, journal=journal, stop_signals=())
        tables = {"tables": self._data.tables} if self._data.tables else {}
        add_to_summary(out, defence=self._parties.defence_reports(), **tables)
        score_run(out, config, self._data)
        return Simulated(setting, recovery, record.model)


@dataclass
class _Look:
    """What one curious party has seen, until the attack is shown it."""

    setting: Setting | None = None
    seen: dict[int, PartyObservation] = field(default_factory=dict)
    """By round: with frozen parameters workers are ahead of the coordinator."""
    ask: Callable[[PartyObservation], Proposal | None] | None = None
    """Of a malicious party: shows the attack a round before the others are."""

    def begin(self, setting: Setting) -> None:
        """Take note of what the party knows."""
        self.setting = setting

    def observe(self, observation: PartyObservation) -> None:
        """Take in one round."""
        self.seen[observation.round] = observation

    def propose(self, number: int) -> Proposal | None:
        """Return what a malicious party is to send in a round that it has seen."""
        return None if self.ask is None else self.ask(self.seen[number])


class _Parties:
    """All parties with data, which compute one after the other."""

    def __init__(self, config: RunConfig, data: Data, looks: Mapping[int | None, _Look]) -> None:
        self._config, self._topology = config, config.topology
        self._threads = worker_threads(self._topology.parties)
        drawn = common_secret(config, None, resume=False)
        common = None if drawn is None else Secret(drawn)
        self._held = [_contiguous(slice_for(data, config, party)) for party in range(self._topology.parties)]
        plans = [
            defence_plan(config, party, len(held.x), most=held.most, common=common)
            for party, held in enumerate(self._held)
        ]
        self._trainers = [
            WorkerTrainer(config, held, plan, Rendezvous(), onlooker=looks.get(plan.worker))
            for plan, held in zip(plans, self._held, strict=True)
        ]
        self._checks = [OrderChecks(config, held, plan) for plan, held in zip(plans, self._held, strict=True)]
        self._version = 0
        self._busy = threading.Lock()

    @contextmanager
    def computing(self, threads: int | None = None) -> Iterator[None]:
        """Compute while neither a party nor the attack does, with as many threads as in a process of its own."""
        with self._busy:
            torch.set_num_threads(threads or self._threads)
            yield

    def requests(self) -> list[JoinRequest]:
        """Return how each party describes itself when it joins."""
        return [
            join_request(held, WorkerOptions(party, "nowhere:1"), "nowhere:1") for party, held in enumerate(self._held)
        ]

    def defence_reports(self) -> list[Defence]:
        """Return what the workers' defences say at the end."""
        reports = [trainer.defence.report() for trainer in self._trainers[: self._config.federation.workers]]
        return [Defence.model_validate(report) for report in reports]

    def start(self, start: Start) -> None:
        """Let each party that holds labels build its top model."""
        for party, trainer in enumerate(self._trainers):
            if trainer.tap is not None:
                trainer.tap.begin(start)
            if self._topology.holds_labels(party):
                trainer.meet_peers(start)
            else:
                trainer.answers.begin(start.output_widths, start.classes)

    def load(self, parameters: Parameters) -> None:
        """Give all parties the parameters, if they have older ones."""
        if self._version != parameters.version:
            for party, trainer in enumerate(self._trainers):
                tensors = parameters.expected_from(party)
                with _named(party):
                    self._checks[party].parameters(parameters.version, tensors, trainer.parameters)
                trainer.load(tensors, parameters.version)
            self._version = parameters.version

    def check(self, number: int, purpose: Purpose, rows: Mapping[int, Tensor]) -> None:
        """Let each party look at a round's order, as it would at one that came over the wire."""
        for party, own in rows.items():
            order = Round(round=number, purpose=purpose, parameters_version=self._version, indices=own.tolist())
            with _named(party):
                self._checks[party].round(order)

    def train(self, number: int, rows: Mapping[int, Tensor]) -> dict[int, Upload]:
        """Return what each party uploads for a round."""
        played = {party: self._trainers[party].forward(number, own) for party, own in rows.items()}
        uploads = {}
        for group in self._groups(rows):
            holder = next(party for party in group if self._topology.holds_labels(party))
            outputs = [played[party][1] for party in group]
            learned = self._trainers[holder].learn(number, played[holder][0], outputs)
            for party, gradient in zip(group, learned.output_gradients, strict=True):
                more = learned if party == holder else None
                made = self._trainers[party].upload(number, *played[party], gradient, learned=more)
                self._checks[party].uploaded(number, made.gradients)
                uploads[party] = Upload(party, made.gradients, made.loss, made.withheld)
        return uploads

    def evaluate(self, number: int, rows: Mapping[int, Tensor]) -> dict[int, Counted]:
        """Return what each party that holds labels counts on test samples."""
        outputs = {party: self._trainers[party].test(own, number) for party, own in rows.items()}
        counted = {}
        for group in self._groups(rows):
            holder = next(party for party in group if self._topology.holds_labels(party))
            counted[holder] = self._trainers[holder].count(rows[holder], [outputs[party] for party in group])
        return counted

    def _groups(self, rows: Mapping[int, Tensor]) -> list[list[int]]:
        """Return which parties exchange outputs: all of them, or in a horizontal federation each with itself."""
        return [[party] for party in rows] if self._topology.is_horizontal else [sorted(rows)]


@contextmanager
def _named(party: int) -> Iterator[None]:
    """Say who refuses an order."""
    try:
        yield
    except OrderRefusedError as refused:
        raise RunFailedError(f"worker {party}: {refused}") from None


def _contiguous(held: WorkerData) -> WorkerData:
    """Return a party's data as it comes out of its file: one block of memory, which some layers round by."""
    x_test = None if held.x_test is None else held.x_test.contiguous()
    return replace(held, x=held.x.contiguous(), x_test=x_test)


class _Session(Session):
    """The coordinator's session with parties that do at once what they are ordered."""

    def __init__(self, config: RunConfig, journal: Journal, parties: _Parties) -> None:
        super().__init__(config, journal)
        self._parties = parties

    async def start(self, output_widths: Sequence[int], begin_anew: Callable[[], int]) -> None:  # noqa: ARG002
        """Let the parties begin; none is ever lost, and nothing begun anew."""
        classes = max(member.classes for member in self.members)
        self._parties.start(Start(run_id="simulated", output_widths=output_widths, classes=classes))

    def order(self, number: int, purpose: Purpose, rows: Mapping[int, Tensor], parameters: Parameters) -> None:
        """Have each party that has rows play a round on them, and take what comes of it."""
        try:
            with self._parties.computing():
                self._parties.load(parameters)
                self._parties.check(number, purpose, rows)
                if purpose == Purpose.PURPOSE_TRAIN:
                    for upload in self._parties.train(number, rows).values():
                        self.answers.inboxes[number].put(upload)
                    return
                assert self.answers.counts is not None
                for party, one in self._parties.evaluate(number, rows).items():
                    evaluation = Evaluation(round=number, correct=one.correct, total=one.total, loss_sum=one.loss_sum)
                    self.answers.counts.put(party, evaluation)
        except RefusedError as refused:
            raise RunFailedError(refused.reason) from None
