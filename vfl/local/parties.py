"""The parties of a simulated federation: the workers' own trainers, in one process and one after the other."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attacker.interface import Proposal
from protos.coordinator_pb2 import JoinRequest, Purpose, Round, Start
from server.inbox import Upload
from server.parameters import Parameters
from vfl.config import RunConfig
from vfl.datasets import Data
from vfl.datasets.slices import WorkerData, slice_for
from vfl.errors import RunFailedError
from vfl.folder.summary import Defence
from vfl.local.launch import common_secret, worker_threads
from vfl.observation import PartyObservation, Setting
from worker.checks import OrderChecks, OrderRefusedError
from worker.keys import Secret
from worker.main import defence_plan, join_request
from worker.party import Counted
from worker.rendezvous import Rendezvous
from worker.session import WorkerOptions
from worker.trainer import Trainer as WorkerTrainer


@dataclass
class Look:
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


class Parties:
    """All parties with data, which compute one after the other."""

    def __init__(self, config: RunConfig, data: Data, looks: Mapping[int | None, Look]) -> None:
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
