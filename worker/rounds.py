"""A run as a worker lives it: it joins, does what each order says, and comes back when its connection is lost."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from protos.codec import Assembler, CodecError
from protos.coordinator_pb2 import JoinRequest, Purpose, Round, Start
from protos.coordinator_pb2 import Parameters as ParametersOrder
from protos.wire import ChunkView
from vfl.config import RunConfig
from vfl.datasets.slices import WorkerData
from vfl.device import resolve_device
from vfl.errors import RunFailedError, in_words
from vfl.limits import MESSAGE_SECONDS, ORDER_SECONDS, PARAMETER_BYTES
from vfl.models import build_bottom, build_top
from vfl.net.tls import Identity, refuse_plain, worker_role
from vfl.observation import BOTTOM, TOP, Tensors, with_prefix, without_prefix
from vfl.seeds import seeded
from worker import joining
from worker.checks import check_parameters, check_round, check_start
from worker.defences import Chain, Plan, WithheldError
from worker.exchange import Peer
from worker.link import Link, LinkLostError
from worker.party import Bottom, Top
from worker.rendezvous import ExchangeError, Rendezvous, SupersededError

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
    """The folder in which its secret outlasts this process; in memory alone without."""
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
    """What a worker has to say at the end: the rounds done, and its defences' report."""

    rounds: int
    defence: dict[str, Any]


class Rounds:
    """The orders of a run, one after the other."""

    def __init__(
        self,
        config: RunConfig,
        data: WorkerData,
        plan: Plan,
        request: JoinRequest,
        rendezvous: Rendezvous,
        options: WorkerOptions,
    ) -> None:
        device, worker = resolve_device(config.device), plan.worker
        self._config, self._data, self._worker, self._device = config, data, worker, device
        self._request, self._rendezvous, self._options = request, rendezvous, options
        self._timeout = config.federation.round_timeout
        waits = (config.federation.join_timeout, self._timeout, options.rejoin_timeout)
        self._longest_silence = ORDER_SECONDS + sum(waits)
        """Between two orders, while the connection shows signs of life."""
        self._between_chunks = max(MESSAGE_SECONDS, 2 * config.federation.silence_timeout)
        """A coordinator that is frozen for long is lost by its silence first, and then it is waited for."""
        self._defence = Chain(config.defence_of(worker), plan)
        self._place = config.federation.bottom_of(worker)
        model = build_bottom(config.model, data.box.shape, config.seed, self._place)
        self._bottom = Bottom(model, data.x, data.x_test, device)
        self._top: Top | None = None
        self._peer: Peer | None = None
        self._run_id = ""
        self._met = False
        """Whether anything was done together with the other workers yet."""
        self._unreached = False
        """Whether nothing came of the first start."""
        self._version = 0
        timeout, silence = config.federation.join_timeout, config.federation.silence_timeout
        self._link = joining.keep_joining(self._join, timeout, silence + joining.NOTICED_SECONDS, self._say)
        if self._link.generation:  # another process was this worker before, and what it counted is lost
            self._defence.start_late()

    def run(self) -> Finished:
        """Follow the orders to the end, over another connection if one is lost on the way."""
        try:
            while True:
                try:
                    return self._follow()
                except LinkLostError as lost:
                    self._come_back(lost)
        except Exception as error:
            self._link.trouble(self._run_id, str(in_words(error)), leaving=True)
            raise
        finally:
            self._link.close()
            if self._peer:
                self._peer.close()

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
                        self._link.flush()
                        return Finished(order.end.rounds, self._defence.report())
                    case other:
                        raise RunFailedError(f"the coordinator sent an order that makes no sense here: {other}")
        except RunFailedError as error:
            # A peer that vanished is often just the first sign of an abort that is on its way: its reason is better.
            raise (self._link.failure_within(2.0) or error) from None

    def _with_the_others(self, follow: Callable[[T], None], order: T) -> None:
        """Follow an order that takes other workers too, unless it is out of date, and a new start among the orders.

        When the others fail it the coordinator is told, and begins anew.
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
                raise  # twice at the very start it is a wrong address, and no accident
            self._unreached = early
            self._link.trouble(self._run_id, str(error), leaving=False)
            self._run_id = ""

    def _join(self, patience: float, previous_session: str = "") -> Link:
        """Join the run, or join it again."""
        self._request.previous_session = previous_session
        options = self._options
        silence = self._config.federation.silence_timeout
        link = Link(options.coordinator, options.worker, patience, self._timeout, options.tls, silence)
        link.on_failure, link.on_start = self._lost, self._supersede
        try:
            link.join(self._request)
        except BaseException:
            link.close()
            raise
        return link

    def _come_back(self, lost: LinkLostError) -> None:
        """Join again under the same number after the connection was lost."""
        patience = self._options.rejoin_timeout
        if not patience:
            raise lost
        self._say(f"{lost}; trying for {patience:g} s to come back")
        self._link.close()
        before = self._link.session
        link = joining.keep_joining(lambda left: self._join(left, before), patience, patience)
        if self._met and not link.generation:
            link.close()  # without a word: that run is none of ours
            raise RunFailedError(f"the coordinator at {self._options.coordinator} has begun another run")
        self._link, self._version = link, 0
        self._rendezvous.recount()
        self._say("is back")

    def _lost(self, reason: str) -> None:
        """Hear, while a round may be under way, that the coordinator is gone, or will not take what comes of it."""
        self._rendezvous.fail(reason)
        if self._peer:
            self._peer.supersede()

    def _supersede(self, run_id: str) -> None:
        """Hear, while another round may be under way, that all is begun anew."""
        self._rendezvous.supersede(run_id)
        if self._peer:
            self._peer.supersede()

    def _say(self, text: str) -> None:
        print(f"worker {self._worker}: {text}", file=sys.stderr, flush=True)

    def _start(self, start: Start) -> None:
        check_start(start, self._config, self._data)
        self._run_id = start.run_id
        if self._peer:
            self._peer.close()
            self._peer = None
        widths = list(start.output_widths)
        if self._config.federation.holds_labels(self._worker):
            if self._top is None:  # else it is a start after a loss, and the parameters are here
                assert self._data.y is not None
                model = build_top(self._config.model, widths, start.classes, self._config.seed)
                self._top = Top(model, self._data.y, self._data.y_test, self._device)
            self._rendezvous.open(start.run_id, {m: w for m, w in enumerate(widths) if m != self._place})
        else:
            self._peer = self._reach_label_holder(start)

    def _reach_label_holder(self, start: Start) -> Peer:
        tls, address = self._options.tls, start.label_holder_address
        if tls is None and not self._options.insecure:
            refuse_plain(address, "the label holder's address")
        # Our own config says who it is: a coordinator must not be able to name a worker that it is in league with.
        holder = worker_role(self._config.federation.label_party)
        silence = self._config.federation.silence_timeout
        about = (address, start.run_id, self._worker, self._timeout, holder, tls, silence)
        return Peer(*about, out_of_date=lambda: self._link.out_of_date(start.run_id))

    def _take_parameters(self, order: ParametersOrder) -> None:
        own = with_prefix(BOTTOM, self._bottom.parameters) | with_prefix(TOP, self._top.parameters if self._top else {})
        check_parameters(order.bundle, own)
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
        self._bottom.load(without_prefix(BOTTOM, tensors))
        if self._top:
            self._top.load(without_prefix(TOP, tensors))
        self._version = order.version

    def _play(self, order: Round) -> None:
        if order.parameters_version != self._version:
            raise RunFailedError(
                f"round {order.round} wants parameters {order.parameters_version}, here are {self._version}"
            )
        check_round(order, self._data)
        indices = torch.tensor(list(order.indices), dtype=torch.int64)
        if order.purpose == Purpose.PURPOSE_EVALUATE:
            self._evaluate(order.round, indices)
        else:
            self._train(order.round, indices)

    def _train(self, number: int, indices: Tensor) -> None:
        rows = self._defence.rows(number, indices)
        with seeded(self._config.seed, f"worker {self._worker}", number):  # for models that draw, as dropout does
            output = self._bottom.forward(rows)
        loss = None
        top_gradients: Tensors = {}
        if self._top:
            outputs = self._all_outputs(number, rows, output)
            with seeded(self._config.seed, f"top of worker {self._worker}", number):
                learned = self._top.learn(outputs, rows, self._defence.mean_over)
            others = {m: g for m, g in enumerate(learned.output_gradients) if m != self._place}
            self._rendezvous.answer(number, others)
            loss, top_gradients = learned.loss, learned.top_gradients
            output_gradient: Tensor | None = learned.output_gradients[self._place]
        else:
            assert self._peer is not None
            output_gradient = self._peer.swap(number, rows, output)
        if output_gradient is None or output_gradient.shape != output.shape:
            raise RunFailedError(f"the label holder's answer for round {number} does not fit this worker's output")
        gradients = with_prefix(BOTTOM, self._bottom.backward(output_gradient)) | with_prefix(TOP, top_gradients)
        try:
            uploaded = self._defence.apply(gradients, number, rows, self._bottom.batch(rows), self._bottom.model)
            self._link.upload(self._run_id, number, uploaded, loss, self._rendezvous.bytes)
        except WithheldError as withheld:
            self._link.upload(self._run_id, number, {}, loss, self._rendezvous.bytes, str(withheld))

    def _evaluate(self, number: int, indices: Tensor) -> None:
        output = self._bottom.evaluate(indices)
        if self._top:
            correct, loss_sum = self._top.count_correct(self._all_outputs(number, indices, output), indices)
            self._rendezvous.answer(number, dict.fromkeys(self._rendezvous.widths))
            self._link.report(self._run_id, number, correct, len(indices), loss_sum, self._rendezvous.bytes)
        else:
            assert self._peer is not None
            self._peer.swap(number, indices, output)

    def _all_outputs(self, number: int, rows: Tensor, own: Tensor) -> list[Tensor]:
        outputs = self._rendezvous.gather(number, rows, self._timeout)
        outputs[self._place] = own
        return [outputs[worker] for worker in sorted(outputs)]
