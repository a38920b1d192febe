"""What a worker checks before it follows an order: it believes its own config and data, not the coordinator.

Every order passes here before memory is taken for it or anything is computed. A check of another kind of lie is one
more `yield` of a sentence below, with what it has to remember in `OrderChecks`.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from protos.codec import CodecError, describe
from protos.coordinator_pb2 import End, Purpose, Round, Start, Welcome
from protos.coordinator_pb2 import Parameters as ParametersOrder
from vfl.config import EVALUATION_BATCH, RunConfig
from vfl.datasets.slices import WorkerData
from vfl.errors import RunFailedError
from vfl.limits import LARGEST_PARAMETER, NAME_CHARACTERS, PARAMETER_BYTES
from vfl.observation import Tensors
from vfl.observation.schedule import batches
from worker.defences import Plan
from worker.rendezvous import rows_digest
from worker.steps import SWITCH, Steps, largest
from worker.widths import Widths

_NUMBER_BYTES = 4


class OrderRefusedError(RunFailedError):
    """An order that does not fit this worker's own config and data: it ends the worker's part in the run."""


class OrderChecks:
    """What a worker's own config and data say of the orders that may come, and what it has followed so far."""

    def __init__(self, config: RunConfig, data: WorkerData, plan: Plan) -> None:
        self._config, self._data, self._plan = config, data, plan
        self._widths = Widths(config, data, plan.worker)
        self._tests = 0 if data.x_test is None else len(data.x_test)
        self._batches = _Batches(config, plan)
        self._steps = Steps(config, plan, max(len(data.x), data.most))
        self._evaluated: set[int] = set()
        """Versions of the parameters on which test samples were counted."""

    def welcome(self, welcome: Welcome) -> None:
        """Refuse a welcome that no coordinator sends."""
        if len(welcome.session) > NAME_CHARACTERS:
            raise OrderRefusedError(f"the coordinator's session is longer than {NAME_CHARACTERS} characters")

    def start(self, start: Start) -> None:
        """Refuse the start of another federation, before a model is built from its numbers."""
        _refuse(self._start_problems(start))

    def announced(self, order: ParametersOrder, own: Mapping[str, Tensor]) -> None:
        """Refuse parameters that are announced and are not those of this worker's models, `own`."""
        _refuse(self._announced_problems(order, own))

    def parameters(self, version: int, tensors: Tensors, own: Mapping[str, Tensor]) -> None:
        """Refuse parameters with which nothing can be computed, or that do not follow from those in force, `own`."""
        _refuse(_value_problems(tensors))
        _refuse(self._steps.problems(version, tensors, own))
        self._steps.follow(version, tensors)

    def round(self, order: Round) -> None:
        """Refuse a round that the config does not plan, or samples that its batch or evaluation cannot be."""
        if order.purpose == Purpose.PURPOSE_TRAIN:
            _refuse(self._batches.problems(order))
            _refuse(self._version_problems(order))
            self._batches.follow(order)
        else:
            _refuse(self._evaluation_problems(order))
            self._evaluated.add(order.parameters_version)

    def start_late(self) -> None:
        """Hear that an earlier process was this worker: the parameters may have moved before this one came."""
        self._steps.late = True

    def uploaded(self, number: int, gradients: Tensors) -> None:
        """Remember what this worker uploaded: the next parameters are to follow from it."""
        self._steps.uploaded(number, gradients)

    def end(self, end: End) -> None:
        """Refuse an end after more rounds than are planned: what a defence's secret is for would seem to be over."""
        if end.rounds > self._plan.rounds:
            planned = f"the config here plans {self._plan.rounds}"
            raise OrderRefusedError(f"the coordinator says that {end.rounds} rounds are done, {planned}")

    def _start_problems(self, start: Start) -> Iterator[str]:
        topology, classes = self._config.topology, self._data.classes
        if (start.workers, start.label_holder) != (topology.parties, topology.label_holder):
            here = f"the config here {topology.parties} and {topology.label_holder}: use the same file everywhere"
            yield f"the coordinator says {start.workers} workers and label holder {start.label_holder}, {here}"
        if len(start.run_id) > NAME_CHARACTERS or len(start.label_holder_address) > NAME_CHARACTERS:
            yield f"the coordinator's names are longer than {NAME_CHARACTERS} characters"
        if self._data.y is not None and start.classes != classes:
            yield f"the coordinator says {start.classes} classes, the labels here have {classes}"
        if len(start.output_widths) != topology.bottoms:
            yield f"the coordinator's outputs fit no model of {topology.parties} workers"
        yield from self._widths.problems(start.output_widths)
        if sum(start.output_widths) * max(start.classes, 1) * _NUMBER_BYTES > PARAMETER_BYTES:
            yield f"the coordinator's outputs make a top model of more than {PARAMETER_BYTES} bytes"

    def _announced_problems(self, order: ParametersOrder, own: Mapping[str, Tensor]) -> Iterator[str]:
        if self._config.training.frozen and order.version != 1:
            yield f"the coordinator sends parameters {order.version}, and the config here leaves them as they are"
        try:
            announced = describe(order.bundle)
        except CodecError as error:
            yield f"the coordinator sent broken parameters: {error}"
            return
        here = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in own.items()}
        for name in here | announced:
            if here.get(name) != announced.get(name):
                theirs, ours = (side[name][1] if name in side else None for side in (announced, here))
                same = "is the config's model section the same on both?"
                yield f"the coordinator's {name} has shape {theirs}, this worker's {ours}: {same}"

    def _version_problems(self, order: Round) -> Iterator[str]:
        planned = self._steps.version_of(order.round)
        if self._config.federation.checks.steps and order.parameters_version != planned:
            wants = f"round {order.round} wants parameters {order.parameters_version}"
            yield f"{wants}, and by the config here it is played with parameters {planned}"

    def _evaluation_problems(self, order: Round) -> Iterator[str]:
        if order.purpose != Purpose.PURPOSE_EVALUATE:
            yield f"round {order.round} has no purpose that this worker knows"
        first, count = (order.indices[0] if order.indices else 0), len(order.indices)
        whole = first % EVALUATION_BATCH == 0 and count == min(EVALUATION_BATCH, self._tests - first)
        if not count or not whole or any(index != first + i for i, index in enumerate(order.indices)):
            these = f"it has {self._tests} test samples, which are counted {EVALUATION_BATCH} at a time and in order"
            yield f"round {order.round} names test samples that this worker does not count alone, or not have: {these}"
        most = _evaluations(self._config, self._plan)
        if order.round <= self._plan.rounds:
            yield f"round {order.round} evaluates, and is one that the config here trains in"
        if len(self._evaluated | {order.parameters_version}) > most:
            yield f"round {order.round} evaluates once more, and the config here plans {most} evaluations"


class _Batches:
    """The batches of training rounds: how large each may be, and which samples those so far were of."""

    def __init__(self, config: RunConfig, plan: Plan) -> None:
        self._plan, self._checks = plan, config.federation.checks
        own = plan.worker if config.topology.is_horizontal else 0
        schedule, size = config.federation.schedule, plan.batch_size
        self._agreed = batches(schedule, plan.samples, size, plan.rounds, seed=config.seed, worker=own)
        """What all parties draw from the seed that they agreed on before the first round."""
        self._size = min(plan.batch_size, plan.samples)
        self._short = plan.samples % self._size or self._size
        """What is left for an epoch's last batch."""
        self._followed = np.zeros(plan.rounds + 1, dtype=np.uint64)
        """Of each round a digest of its samples; 0 for those that were not ordered yet."""
        self._planned = np.zeros(plan.rounds + 1, dtype=np.uint64)
        """The same of the agreed batches, as far as they are drawn."""
        self._drawn = self._last = 0

    def problems(self, order: Round) -> Iterator[str]:
        """Yield what is wrong with the samples of a round, or with its number."""
        number, rows, plan = order.round, order.indices, self._plan
        if not 0 < number <= plan.rounds:
            yield f"the coordinator orders round {number}, and the config here plans {plan.rounds}"
            return
        least, most = self._sizes(number)
        if not rows or (self._checks.sizes and not least <= len(rows) <= most):
            planned = f"{least}" if least == most else f"{least} to {most}"
            yield f"round {number} names {len(rows)} samples, and the config here plans batches of {planned}"
            return
        if max(rows) >= plan.samples:
            yield f"round {number} names samples that this worker does not have: it has {plan.samples}"
        if len(set(rows)) < len(rows):
            yield f"round {number} names a sample twice"
        if self._last and number > self._last + 1:
            yield f"the coordinator orders round {number} after round {self._last}"
        before = self._followed[number]
        if before and before != _digest(rows):
            yield f"round {number} was ordered before, with other samples"
        if self._checks.schedule and self._agreed_digest(number) != _digest(rows):
            other = f"round {number} names other samples than the agreed schedule, which follows from the config's seed"
            yield f"{other}: is the seed the same in both configs? {SWITCH}"

    def follow(self, order: Round) -> None:
        """Remember a round that is followed."""
        self._followed[order.round] = _digest(order.indices)
        self._last = max(self._last, order.round)

    def _agreed_digest(self, number: int) -> np.uint64:
        """Draw the agreed batches up to a round, and return the digest of its samples."""
        while self._drawn < number:
            self._drawn += 1
            self._planned[self._drawn] = _digest(next(self._agreed).tolist())
        return np.uint64(self._planned[number])

    def _sizes(self, number: int) -> tuple[int, int]:
        """Return the fewest and the most samples that a round's batch can have."""
        if self._plan.schedule == "uniform":
            return self._size, self._size
        if self._plan.schedule == "epochs":
            is_last = number % -(-self._plan.samples // self._size) == 0
            return (self._short, self._short) if is_last else (self._size, self._size)
        return self._short, self._size  # `orthogonal` may put what is left into any batch


def _evaluations(config: RunConfig, plan: Plan) -> int:
    """Return how often test samples are counted: before the first round, every so many rounds, and at the end."""
    every = config.training.evaluate_every
    return 1 + config.training.evaluate_first + (plan.rounds // every if every else 0)


def _value_problems(tensors: Tensors) -> Iterator[str]:
    for name, tensor in tensors.items():
        if not largest(tensor) <= LARGEST_PARAMETER:  # nor is nan
            bound = f"beyond {LARGEST_PARAMETER:,}: did training diverge, or does the coordinator lie?"
            yield f"the coordinator's {name} has values that are not finite, or {bound}"


def _digest(rows: Iterable[int]) -> np.uint64:
    """Return a digest of rows that is never 0."""
    digest = rows_digest(torch.tensor(list(rows), dtype=torch.int64))
    return np.uint64(int.from_bytes(digest, "little") | 1)


def _refuse(problems: Iterator[str]) -> None:
    """Raise the first problem, if there is one; those after it may be no more than its consequence."""
    for problem in problems:
        raise OrderRefusedError(problem)
