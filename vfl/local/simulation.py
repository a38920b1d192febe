"""A federation and its attack in one process, without sockets: the coordinator's own trainer, the workers' own."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacker.driver.conclude import conclude
from attacker.driver.follow import Follower, Snapshots
from attacker.interface import Proposal, Recovery
from attacker.start import start_attack
from protos.coordinator_pb2 import Evaluation, Purpose, Start
from server.checkpoint import Checkpoints
from server.parameters import Parameters
from server.refusal import RefusedError
from server.session import Session
from server.trainer import Trainer
from vfl.config import RunConfig
from vfl.datasets import Data
from vfl.errors import RunFailedError
from vfl.folder import held, make_way, transcript_of
from vfl.folder.journal import Journal
from vfl.folder.record import Record, write_model
from vfl.folder.transcript import TranscriptWriter
from vfl.local.launch import add_to_summary, check, known_labels
from vfl.local.parties import Look, Parties
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
    with held(out, fresh=fresh):
        moved = make_way(out, config, fresh=fresh)
        journal = Journal(out)
        if moved:
            journal.say(moved)
        return _simulate(config, data, out, on_round, journal=journal)


def _simulate(config: RunConfig, data: Data, out: Path, on_round: OnRound, *, journal: Journal) -> Simulated:
    threads = torch.get_num_threads()
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
        self._looks = {seat.worker: Look() for seat in config.seats}
        """What each curious party has seen; the coordinator's number is None."""
        self._parties = Parties(config, data, self._looks)
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


class _Session(Session):
    """The coordinator's session with parties that do at once what they are ordered."""

    def __init__(self, config: RunConfig, journal: Journal, parties: Parties) -> None:
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
