"""The bytes of a run's messages, counted by building the messages: of the batches and tensors that will be sent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from protos.codec import ALIGNMENT, announce
from protos.coordinator_pb2 import Evaluation, Order, Purpose, Round, Start, UploadHeader, UploadPart, Welcome
from protos.coordinator_pb2 import Parameters as ParametersOrder
from protos.tensors_pb2 import Chunk
from protos.worker_pb2 import SwapPart
from vfl.config import EVALUATION_BATCH, RunConfig
from vfl.limits import CHUNK_BYTES
from vfl.net.network import PROTOCOL_VERSION
from vfl.observation import Setting
from vfl.observation.schedule import batches_of
from worker.rendezvous import swap_parts

SESSION, RUN_ID = "0" * 32, "0" * 16
Carrier = Callable[..., Order | UploadPart]
"""Messages that may carry a chunk."""
ADDRESS = "127.0.0.1:40000"
"""As long as any label holder's address in a local run."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of messages, as `summary.json` counts them: without TLS and HTTP/2's own."""

    up: int
    down: int
    peer: int

    @property
    def total(self) -> int:
        """Return all of them."""
        return self.up + self.down + self.peer


def count_traffic(
    config: RunConfig,
    setting: Setting,
    *,
    test_samples: int,
    uploads: Sequence[Mapping[str, Tensor]],
    widths: Sequence[int],
) -> Traffic:
    """Count a run in which no worker is lost and no upload withheld; `uploads` are each worker's tensors of a round."""
    count = _Count(config, setting, uploads, widths)
    every = config.training.evaluate_every or setting.rounds
    for number, batch in enumerate(batches_of(setting), start=1):
        count.train(number, batch)
        if test_samples and (number % every == 0 or number == setting.rounds):
            for rows in torch.arange(test_samples).split(EVALUATION_BATCH):
                count.evaluate(rows)
    return Traffic(count.up, count.down, count.peer)


class _Count:
    def __init__(
        self, config: RunConfig, setting: Setting, uploads: Sequence[Mapping[str, Tensor]], widths: Sequence[int]
    ) -> None:
        self._holder = config.topology.label_holder
        self._workers, self._training = config.topology.parties, config.training
        self._rounds, self._epoch = setting.rounds, -(-setting.samples // setting.batch_size)
        self._version, self._sent, self._evaluated = 1, 0, 0
        self._widths = [width for worker, width in enumerate(widths) if worker != self._holder]
        self._peers = [worker for worker in range(len(widths)) if worker != self._holder]
        self._bundles = [announce(tensors) for tensors in uploads]
        self._sizes = [
            sum(_padded(tensor.numel() * tensor.element_size()) for tensor in tensors.values()) for tensors in uploads
        ]
        start = Start(
            run_id=RUN_ID, workers=self._workers, label_holder=self._holder, label_holder_address=ADDRESS,
            classes=setting.classes, output_widths=widths,
        )  # fmt: skip
        welcome = Welcome(session=SESSION, protocol_version=PROTOCOL_VERSION)
        self.up = self.peer = 0
        self.down = self._workers * (_size(Order(welcome=welcome)) + _size(Order(start=start)))
        self._header = cache(self._header_size)
        self._parameters = cache(self._parameters_size)
        self._swap = cache(self._swap_size)

    def train(self, number: int, batch: Tensor) -> None:
        """Add a round."""
        self._order(number, Purpose.PURPOSE_TRAIN, batch)
        self.peer += self._swap(_alike(number), len(batch), answered=True)
        self.up += self._header(_alike(number), _alike(self.peer))
        self._version += self._training.learning_rate(number, self._rounds, self._epoch) != 0.0

    def evaluate(self, rows: Tensor) -> None:
        """Add a batch of test samples."""
        self._evaluated += 1
        number = self._rounds + self._evaluated
        self._order(number, Purpose.PURPOSE_EVALUATE, rows)
        self.peer += self._swap(_alike(number), len(rows), answered=False)
        report = Evaluation(
            session=SESSION, run_id=RUN_ID, round=number, correct=len(rows) // 2, total=len(rows), loss_sum=1.0,
            peer_bytes=self.peer,
        )  # fmt: skip
        self.up += _size(report)

    def _order(self, number: int, purpose: Purpose, rows: Tensor) -> None:
        """Add the coordinator's orders to all workers, with the parameters if they are new."""
        if self._sent != self._version:
            self.down += self._parameters(_alike(self._version))
            self._sent = self._version
        play = Round(round=number, purpose=purpose, parameters_version=self._version, indices=rows.tolist())
        self.down += self._workers * _size(Order(round=play))

    def _header_size(self, number: int, peer: int) -> int:
        """Return the size of all workers' uploads for a round."""
        total = 0
        for worker, (bundle, size) in enumerate(zip(self._bundles, self._sizes, strict=True)):
            holds = worker == self._holder
            header = UploadHeader(
                session=SESSION, run_id=RUN_ID, worker=worker, round=number, gradients=bundle,
                loss=1.0 if holds else None, peer_bytes=peer if holds else 0,
            )  # fmt: skip
            total += _size(UploadPart(header=header)) + _chunks(size, UploadPart)
        return total

    def _parameters_size(self, version: int) -> int:
        return sum(
            _size(Order(parameters=ParametersOrder(version=version, bundle=bundle))) + _chunks(size, Order)
            for bundle, size in zip(self._bundles, self._sizes, strict=True)
        )

    def _swap_size(self, number: int, rows: int, *, answered: bool) -> int:
        """Return the size of what goes between the label holder and its peers for a batch of so many rows."""
        total = 0
        for worker, width in zip(self._peers, self._widths, strict=True):
            for name in ("output", "gradient"):
                there = {name: torch.empty(rows, width)} if name == "output" or answered else {}
                digest = bytes(8) if name == "output" else b""
                total += sum(map(_size, swap_parts(RUN_ID, worker, number, there, rows=digest)))
        return total


def _chunks(size: int, message: Carrier) -> int:
    """Return the size of the messages that carry so many bytes."""
    offsets = range(0, size, CHUNK_BYTES)
    return sum(_carried(message, _alike(offset), min(CHUNK_BYTES, size - offset)) for offset in offsets)


@cache
def _carried(message: Carrier, offset: int, length: int) -> int:
    return _size(message(chunk=Chunk(offset=offset, data=bytes(length))))


def _alike(number: int) -> int:
    """Return the smallest number that takes as many bytes in a message: so few sizes have to be computed."""
    return 0 if number == 0 else 1 << 7 * ((number.bit_length() - 1) // 7)


def _padded(size: int) -> int:
    return size + -size % ALIGNMENT


def _size(message: Order | UploadPart | SwapPart | Evaluation) -> int:
    return int(message.ByteSize())
