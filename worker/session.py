"""A run as a worker lives it: it joins, follows each order, and comes back when its connection is lost."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from protos.codec import Assembler, CodecError
from protos.coordinator_pb2 import JoinRequest, Purpose, Round, Start
from protos.coordinator_pb2 import Parameters as ParametersOrder
from protos.wire import ChunkView
from vfl.config import RunConfig
from vfl.datasets.slices import WorkerData
from vfl.errors import RunFailedError, in_words
from vfl.limits import MESSAGE_SECONDS, ORDER_SECONDS, PARAMETER_BYTES
from vfl.net.tls import Identity, refuse_plain, worker_role
from worker.checks import OrderChecks
from worker.defences import Plan
from worker.exchange import Peer
from worker.link import NOTICED_SECONDS, Link, LinkLostError, keep_joining
from worker.rendezvous import ExchangeError, Rendezvous, SupersededError
from worker.tap import Onlooker
from worker.trainer import Trainer

T = TypeVar("T")


@dataclass(frozen=True)
class WorkerOptions:
    """How one worker is started: who it is, where the coordinator and itself are found."""

    worker: int
    coordinator: str
    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    threads: int | None = None
    key_file: Path | None = None
    state: Path | None = None
    """The folder in which its secret and its defences' count outlast this process; in memory alone without."""
    common: bytes | None = field(default=None, repr=False)
    """The secret that all workers have in common, where they were given one."""
    tls: Identity | None = None
    """What it proves itself with; plain text without."""
    insecure: bool = False
    """Plain text may leave this machine."""
    rejoin_timeout: float = 0.0
    """How long it tries to come back after it lost the coordinator, in seconds; 0: it ends then."""


@dataclass(frozen=True)
class Finished:
    """What a worker reports at the end: the rounds done, and its defences' report."""

    rounds: int
    defence: dict[str, Any]


class Session:
    """One worker's run: its connection to the coordinator, and the orders that come over it one after the other."""

    def __init__(
        self,
        config: RunConfig,
        data: WorkerData,
        plan: Plan,
        *,
        rendezvous: Rendezvous,
        options: WorkerOptions,
        onlooker: Onlooker | None = None,
    ) -> None:
        self._config, self._data, self._worker = config, data, plan.worker
        self._rendezvous, self._options = rendezvous, options
        self._timeout = config.federation.round_timeout
        waits = (config.federation.join_timeout, self._timeout, options.rejoin_timeout)
        self._longest_silence = ORDER_SECONDS + sum(waits)
        """Between two orders, while the connection shows signs of life."""
        self._between_chunks = max(MESSAGE_SECONDS, 2 * config.federation.silence_timeout)
        """Longer than `silence_timeout`: a frozen coordinator is then noticed as a lost connection, and waited for."""
        self._checks = OrderChecks(config, data, plan)
        self._trainer = Trainer(config, data, plan, rendezvous, onlooker=onlooker)
        self._run_id = ""
        self._met = False
        """Whether any order was followed together with the other workers yet."""
        self._unreached = False
        """Whether the first start failed because the other workers could not be reached."""
        self._version = 0

    def run(self, request: JoinRequest) -> Finished:
        """Join, then follow the orders to the end, over another connection if one is lost on the way."""
        waits = self._config.federation
        patience, doubted = waits.join_timeout, waits.silence_timeout + NOTICED_SECONDS
        self._link = keep_joining(lambda left: self._join(request, left), patience, doubted=doubted, say=self._say)
        if self._link.generation:  # an earlier process was this worker
            self._trainer.defence.start_late()
            self._checks.start_late()
        else:
            self._trainer.defence.start_first()
        try:
            while True:
                try:
                    return self._follow()
                except LinkLostError as lost:
                    self._come_back(request, lost)
        except Exception as error:
            self._link.trouble(self._run_id, str(in_words(error)), leaving=True)
            raise
        finally:
            self._link.close()
            self._trainer.hang_up()

    def _follow(self) -> Finished:
        try:
            while True:
                order = self._link.next_order(self._longest_silence)
                if isinstance(order, ChunkView):
                    raise RunFailedError("the coordinator sent a chunk that belongs to nothing")
                match order.WhichOneof("order"):
                    case "start":
                        self._with_the_others(self._start, order.start)
                    case "parameters":
                        self._take_parameters(order.parameters)
                    case "round":
                        self._with_the_others(self._play, order.round)
                    case "end":
                        self._checks.end(order.end)
                        self._link.flush()
                        return Finished(order.end.rounds, self._trainer.defence.report())
                    case other:
                        raise RunFailedError(f"the coordinator sent an order that makes no sense here: {other}")
        except RunFailedError as error:
            # A peer that vanished is often just the first sign of an abort that is on its way: its reason is better.
            raise (self._link.failure_within(2.0) or error) from None

    def _with_the_others(self, follow: Callable[[T], None], order: T) -> None:
        """Follow an order that the other workers take part in, unless a newer start has made it out of date.

        If the exchange with them fails, the coordinator hears of it and begins the round anew.
        """
        run_id = order.run_id if isinstance(order, Start) else self._run_id
        if not run_id or run_id != self._link.run_id:
            return
        try:
            follow(order)
            self._met = True
        except SupersededError:
            return
        except ExchangeError as error:
            if self._link.out_of_date(run_id):
                return
            early = not (self._met or self._link.generation)
            if not self._options.rejoin_timeout or (early and self._unreached):
                raise  # twice at the very start means a wrong address rather than a lost worker
            self._unreached = early
            self._link.trouble(self._run_id, str(error), leaving=False)
            self._run_id = ""

    def _join(self, request: JoinRequest, patience: float, previous_session: str = "") -> Link:
        """Join the run, or join it again."""
        request.previous_session = previous_session
        own, silence = self._options, self._config.federation.silence_timeout
        link = Link(
            own.coordinator, own.worker, join_timeout=patience, timeout=self._timeout, tls=own.tls, silence=silence
        )
        link.on_failure, link.on_start = self._lost, self._supersede
        try:
            self._checks.welcome(link.join(request))
        except BaseException:
            link.close()
            raise
        return link

    def _come_back(self, request: JoinRequest, lost: LinkLostError) -> None:
        """Join again under the same number after the connection was lost."""
        patience = self._options.rejoin_timeout
        if not patience:
            raise lost
        self._say(f"{lost}; trying for {patience:g} s to come back")
        self._link.close()
        before = self._link.session
        link = keep_joining(lambda left: self._join(request, left, before), patience, doubted=patience)
        if self._met and not link.generation:
            link.close()  # no trouble is reported: this worker has no part in that coordinator's run
            raise RunFailedError(f"the coordinator at {self._options.coordinator} has begun another run")
        self._link, self._version = link, 0
        self._rendezvous.recount()
        self._say("is back")

    def _lost(self, reason: str) -> None:
        """Interrupt the round that may be under way: the coordinator is gone, or refuses this worker's uploads."""
        self._rendezvous.fail(reason)
        self._trainer.interrupt()

    def _supersede(self, run_id: str) -> None:
        """Interrupt the round that may be under way: the coordinator has begun all anew."""
        self._rendezvous.supersede(run_id)
        self._trainer.interrupt()

    def _say(self, text: str) -> None:
        print(f"worker {self._worker}: {text}", file=sys.stderr, flush=True)

    def _start(self, start: Start) -> None:
        self._checks.start(start)
        self._run_id = start.run_id
        if self._trainer.tap is not None:
            self._trainer.tap.begin(start)
        self._trainer.hang_up()
        if self._config.topology.holds_labels(self._worker):
            self._trainer.meet_peers(start)
        else:
            self._trainer.answers.begin(start.output_widths, start.classes)
            self._trainer.meet_label_holder(self._reach_label_holder(start))

    def _reach_label_holder(self, start: Start) -> Peer:
        tls, address = self._options.tls, start.label_holder_address
        if tls is None and not self._options.insecure:
            refuse_plain(address, "the label holder's address")
        return Peer(
            address,
            start.run_id,
            self._worker,
            # From this worker's own config: else a coordinator could name a worker that it is in league with.
            holder=worker_role(self._config.topology.label_holder),
            timeout=self._timeout,
            tls=tls,
            silence=self._config.federation.silence_timeout,
            out_of_date=lambda: self._link.out_of_date(start.run_id),
        )

    def _take_parameters(self, order: ParametersOrder) -> None:
        self._checks.announced(order, self._trainer.parameters)
        try:
            assembler = Assembler(order.bundle, PARAMETER_BYTES)
            deadline = time.monotonic() + max(self._timeout, self._between_chunks)
            while not assembler.complete:
                if time.monotonic() > deadline:
                    raise RunFailedError(f"the coordinator's parameters took longer than {self._timeout:g} s")
                part = self._link.next_order(self._between_chunks)
                if not isinstance(part, ChunkView):
                    raise CodecError("only chunks follow the announcement")
                assembler.add(part.offset, part.data)
            tensors = assembler.finish()
        except CodecError as error:
            raise RunFailedError(f"the coordinator sent broken parameters: {error}") from None
        self._checks.parameters(order.version, tensors, self._trainer.parameters)
        self._trainer.load(tensors, order.version)
        self._version = order.version

    def _play(self, order: Round) -> None:
        number = order.round
        if order.parameters_version != self._version:
            wanted = f"parameters {order.parameters_version}"
            raise RunFailedError(f"round {number} wants {wanted}, here are {self._version}")
        self._checks.round(order)
        indices = torch.tensor(list(order.indices), dtype=torch.int64)
        if order.purpose != Purpose.PURPOSE_EVALUATE:
            made = self._trainer.train(number, indices)
            self._checks.uploaded(number, made.gradients)
            self._link.upload(self._run_id, number, made, self._rendezvous.bytes)
        elif counted := self._trainer.evaluate(number, indices):
            self._link.report(self._run_id, number, counted, self._rendezvous.bytes)
