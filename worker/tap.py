"""A curious party's tap: it shows an onlooker what the party itself sees of each round, and nothing besides."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from protos.coordinator_pb2 import Start
from vfl.config import RunConfig
from vfl.datasets.slices import WorkerData
from vfl.observation import Held, LabelHolderObservation, Setting, Tensors, WorkerObservation
from vfl.seats import Seat
from worker.party import Learned


class Proposed(Protocol):
    """What an onlooker wants a malicious party to send."""

    @property
    def answers(self) -> tuple[Tensor, ...] | None:
        """What a label holder answers to each worker."""

    @property
    def upload(self) -> Tensors | None:
        """What a worker uploads as its bottom model's gradients."""


class Onlooker(Protocol):
    """Who looks on at a curious party: it records the rounds, or lets an attack follow them."""

    def begin(self, setting: Setting) -> None:
        """Take note of what the party knows before the first round, or raise UserError if that is too little."""

    def observe(self, observation: WorkerObservation | LabelHolderObservation) -> None:
        """Take in one round."""

    def propose(self, number: int) -> Proposed | None:
        """Return what a malicious party is to send in a round that it was shown, None for what the protocol says."""


class Tap:
    """Shows each round once, also if it is played again because a worker was lost."""

    def __init__(self, config: RunConfig, data: WorkerData, seat: Seat, onlooker: Onlooker) -> None:
        self._config, self._data, self._seat, self._onlooker = config, data, seat, onlooker
        self._begun = False
        self._shown = 0
        self._proposed: tuple[int, Proposed | None] = (0, None)
        self._widths = 0
        self._version, self._bottom, self._top = 0, dict[str, Tensor](), dict[str, Tensor]()

    def begin(self, start: Start) -> None:
        """Show what the party knows when the run starts; a start after a lost worker's return says the same."""
        if self._begun:
            return
        data, seat, widths = self._data, self._seat, tuple(start.output_widths)
        assert seat.worker is not None
        own = {seat.worker: data.x.cpu()} if self._config.topology.holds_features(seat.worker) else {}
        held = Held(own, data.auxiliary)
        labels = tuple(data.y.tolist()) if data.y is not None else None
        self._onlooker.begin(
            Setting.at(
                self._config,
                seat,
                data.box,
                start.classes,
                samples=len(data.x),
                held=held,
                labels=labels,
                widths=widths,
            )
        )
        self._begun, self._widths = True, len(widths)

    def load(self, version: int, bottom: Tensors, top: Tensors) -> None:
        """Take note of the parameters in force."""
        self._version, self._bottom, self._top = version, _copied(bottom), _copied(top)

    def swapped(self, number: int, rows: Tensor, output: Tensor, answer: Tensor) -> None:
        """Show a round of a worker that does not hold the labels: what it sent, and what it got back."""
        if self._is_new(number):
            sent, got = output.cpu(), answer.detach().cpu()
            self._onlooker.observe(WorkerObservation(number, rows, self._version, self._bottom, sent, got))

    def learned(self, number: int, rows: Tensor, outputs: Sequence[Tensor], learned: Learned) -> None:
        """Show a round of the label holder: all that it was sent, and what it made of it."""
        if self._is_new(number):
            observation = LabelHolderObservation(
                number,
                rows,
                self._version,
                self._bottom,
                self._top,
                outputs=tuple(one.detach().cpu() for one in outputs[: self._widths]),
                answers=tuple(one.detach().cpu() for one in learned.output_gradients[: self._widths]),
                top_gradients={name: one.detach().cpu() for name, one in learned.top_gradients.items()},
            )
            self._onlooker.observe(observation)

    def proposed(self, number: int) -> Proposed | None:
        """Return what a malicious party is to send in this round, the same if it is played again."""
        if self._seat.malicious and self._proposed[0] != number:
            self._proposed = (number, self._onlooker.propose(number))
        return self._proposed[1]

    def _is_new(self, number: int) -> bool:
        new, self._shown = number > self._shown, max(number, self._shown)
        return new


def _copied(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
