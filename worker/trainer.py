"""A worker's part of a round: forward, the exchange with the other workers, backward, the defence."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from torch import Tensor

from protos.coordinator_pb2 import Start
from vfl.config import RunConfig
from vfl.datasets.slices import WorkerData
from vfl.device import resolve_device
from vfl.errors import RunFailedError
from vfl.maths.loss import loss_of
from vfl.models import build_bottom, build_top
from vfl.observation import BOTTOM, TOP, Tensors, with_prefix, without_prefix
from vfl.seeds import seeded
from worker.answers import AnswerChecks
from worker.defences import Plan, WithheldError
from worker.defences.places import Defences
from worker.exchange import Peer
from worker.party import Bottom, Counted, Learned, Top, Upload
from worker.rendezvous import Rendezvous
from worker.tap import Onlooker, Tap


class Trainer:
    """Computes what each round asks of this worker; the session tells it which rounds there are."""

    def __init__(
        self,
        config: RunConfig,
        data: WorkerData,
        plan: Plan,
        rendezvous: Rendezvous,
        *,
        onlooker: Onlooker | None = None,
    ) -> None:
        """Prepare; the `onlooker` is shown the rounds if the config says that this worker is curious."""
        self._config, self._data, self._worker, self._rendezvous = config, data, plan.worker, rendezvous
        self._device = resolve_device(config.device.workers)
        self.defence = Defences(config, plan)
        self._place = config.topology.bottom_of(plan.worker)
        model = build_bottom(config.model, data.box.shape, config.seed, self._place)
        self._bottom = Bottom(model, data.x, data.x_test, self._device, training=config.training)
        self._top: Top | None = None
        self._y = data.y
        """What is learned as the labels."""
        self._peer: Peer | None = None
        self.answers = AnswerChecks(config)
        seat = config.curious_seat(plan.worker)
        self.tap = None if seat is None or onlooker is None else Tap(config, data, seat, onlooker)

    def meet_peers(self, start: Start) -> None:
        """Begin as the label holder: build the top model, and let the other workers bring their outputs."""
        widths = list(start.output_widths)
        if self._top is None:  # after a lost worker's return there is one, with its parameters
            assert self._data.y is not None
            loss = loss_of(self._config.training)
            model = build_top(self._config.model, widths, loss.outputs(start.classes), self._config.seed)
            self._y = self.defence.answers.labels(self._data.y, start.classes)
            self._top = Top(model, self._y, self._data.y_test, self._device, training=self._config.training)
        self._rendezvous.open(start.run_id, {m: w for m, w in enumerate(widths) if m != self._place})

    def meet_label_holder(self, peer: Peer) -> None:
        """Begin as any other worker: outputs go over this line."""
        self._peer = peer

    def interrupt(self) -> None:
        """End the exchange that another thread may be waiting in: its round will be done again, or not at all."""
        if self._peer:
            self._peer.supersede()

    def hang_up(self) -> None:
        """Close the line to the label holder, if there is one."""
        if self._peer:
            self._peer.close()
            self._peer = None

    @property
    def parameters(self) -> Tensors:
        """Return the parameters of this worker's models, as they are called on the wire."""
        top = self._top.parameters if self._top else {}
        return with_prefix(BOTTOM, self._bottom.parameters) | with_prefix(TOP, top)

    def load(self, parameters: Tensors, version: int) -> None:
        """Take over new parameters."""
        bottom, top = without_prefix(BOTTOM, parameters), without_prefix(TOP, parameters)
        self._bottom.load(bottom)
        if self._top:
            self._top.load(top)
        if self.tap is not None:
            self.tap.load(version, bottom, top)

    def train(self, number: int, indices: Tensor) -> Upload:
        """Return what this worker uploads for a round in which the coordinator named these samples."""
        rows, output = self.forward(number, indices)
        if self._top is None:
            assert self._peer is not None
            return self.upload(number, rows, output, self._peer.swap(number, rows, output))
        learned = self.learn(number, rows, self._all_outputs(number, rows, output))
        self._rendezvous.answer(number, {m: g for m, g in enumerate(learned.output_gradients) if m != self._place})
        return self.upload(number, rows, output, learned.output_gradients[self._place], learned=learned)

    def forward(self, number: int, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows that a round is really played on, and what this worker sends as its output for them."""
        rows = self.defence.rows(number, indices)
        with seeded(self._config.seed, f"worker {self._worker}", number):  # for models that draw, as dropout does
            output = self._bottom.forward(rows)
        return rows, self.defence.sent(output, number, rows)

    def learn(self, number: int, rows: Tensor, outputs: Sequence[Tensor]) -> Learned:
        """Return what the label holder gets out of all workers' outputs, with the answers as they are sent."""
        assert self._top is not None
        with seeded(self._config.seed, f"top of worker {self._worker}", number):
            learned = self._top.learn(outputs, rows, self.defence.mean_over)
        if self.tap is not None:
            self.tap.learned(number, rows, outputs, learned)
        answers = self.defence.answered(learned.output_gradients, number, rows, labels=self._y)
        proposed = None if self.tap is None else self.tap.proposed(number)
        if proposed is not None and proposed.answers is not None:
            answers = proposed.answers
        return replace(learned, output_gradients=answers)

    def upload(
        self, number: int, rows: Tensor, output: Tensor, gradient: Tensor | None, *, learned: Learned | None = None
    ) -> Upload:
        """Return what is uploaded, given the loss's gradient of this worker's output; the label holder has more."""
        if gradient is None or gradient.shape != output.shape:
            raise RunFailedError(f"the label holder's answer for round {number} does not fit this worker's output")
        if learned is None:
            self.answers.check(number, gradient)
            if self.tap is not None:
                self.tap.swapped(number, rows, output, gradient)
        loss, top_gradients = (learned.loss, learned.top_gradients) if learned else (None, {})
        drawing = seeded(self._config.seed, f"local steps of worker {self._worker}", number)
        with drawing if self._config.training.local_steps > 1 else nullcontext():
            bottom = self._bottom.backward(gradient, self.defence.penalty)
        gradients = with_prefix(BOTTOM, bottom) | with_prefix(TOP, top_gradients)
        try:
            x, model = self._bottom.batch(rows), self._bottom.model
            defended = self.defence.apply(gradients, number, rows=rows, x=x, model=model)
        except WithheldError as withheld:
            return Upload({}, loss, str(withheld))
        proposed = None if self.tap is None or learned else self.tap.proposed(number)
        if proposed is not None and proposed.upload is not None:
            defended = with_prefix(BOTTOM, proposed.upload)
        return Upload(defended, loss)

    def evaluate(self, number: int, indices: Tensor) -> Counted | None:
        """Return what the label holder counts on these test samples; None at the other workers."""
        output = self.test(indices, number)
        if self._top is None:
            assert self._peer is not None
            self._peer.swap(number, indices, output)
            return None
        counted = self.count(indices, self._all_outputs(number, indices, output))
        self._rendezvous.answer(number, dict.fromkeys(self._rendezvous.widths))
        return counted

    def test(self, indices: Tensor, number: int) -> Tensor:
        """Return what this worker sends as its output for test samples."""
        return self.defence.sent(self._bottom.evaluate(indices), number, indices)

    def count(self, indices: Tensor, outputs: Sequence[Tensor]) -> Counted:
        """Return what the label holder counts, given all workers' outputs for test samples."""
        assert self._top is not None
        return self._top.count_correct(outputs, indices)

    def _all_outputs(self, number: int, rows: Tensor, own: Tensor) -> list[Tensor]:
        outputs = self._rendezvous.gather(number, rows, self._config.federation.round_timeout)
        outputs[self._place] = own
        return [outputs[worker] for worker in sorted(outputs)]
