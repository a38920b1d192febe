"""What one worker holds, in memory and as a file: its slice of every sample, or some samples whole; and labels."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vfl.config import RunConfig
from vfl.datasets import Data, DataSet, Facts, check_data, check_facts_of, datasets
from vfl.errors import UserError
from vfl.files import PRIVATE, refuse_irregular, write_atomically
from vfl.limits import CLASSES, DIMENSIONS, FEATURES, plain
from vfl.maths.loss import loss_of
from vfl.partition import Box, Shape, column_boxes, partition
from vfl.topology import even_runs

NONE = (
    "give it some, or, if it has the labels alone, make it the last worker and the label holder, and set "
    "federation.label_holder_features to false"
)
"""What to do about a worker without columns."""

LABELS = "labels.safetensors"
"""The file with the labels, if the coordinator holds them."""


@dataclass(frozen=True)
class WorkerData:
    """One worker's data. Only the label holder has y, y_test and classes; in a horizontal federation all have."""

    box: Box
    x: Tensor
    ids_digest: bytes
    x_test: Tensor | None = None
    y: Tensor | None = None
    y_test: Tensor | None = None
    classes: int = 0
    most: int = 0
    """In a horizontal federation the samples of the worker with most, which decide how long an epoch is."""
    auxiliary: Tensor | None = None
    """The first samples whole, which a curious party knows from elsewhere (`auxiliary` in the config)."""

    def save(self, path: Path) -> None:
        """Write the slice to a file that is its owner's alone."""
        named = {"x": self.x, "x_test": self.x_test, "y": self.y, "y_test": self.y_test}
        named["auxiliary"] = self.auxiliary
        tensors = {name: tensor.contiguous() for name, tensor in named.items() if tensor is not None}
        bounds = {"sample_shape": self.box.sample_shape, "start": self.box.start, "stop": self.box.stop}
        about = {**bounds, "ids_digest": self.ids_digest.hex(), "classes": self.classes, "most": self.most}

        def write(new: Path) -> None:
            save_file(tensors, new, metadata={"slice": json.dumps(about)})

        write_atomically(path, write, durably=False, mode=PRIVATE)

    @staticmethod
    def load(path: Path) -> "WorkerData":
        """Read the slice from a file."""
        try:
            refuse_irregular(path)
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["slice"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            box = Box(_bounds(about["sample_shape"]), _bounds(about["start"]), _bounds(about["stop"]))
            classes, most = int(about["classes"]), int(about.get("most", 0))
            x_test, y, y_test = (tensors.get(name) for name in ("x_test", "y", "y_test"))
            ids = bytes.fromhex(about["ids_digest"])
            data = WorkerData(box, tensors["x"], ids, x_test, y, y_test, classes, most, tensors.get("auxiliary"))
            problem = data._problem()
            if problem:
                raise ValueError(problem)
            return data
        except FileNotFoundError:
            raise UserError(f"there is no slice file {path}") from None
        except (SafetensorError, KeyError, TypeError, ValueError, OSError, RecursionError, RuntimeError) as error:
            raise UserError(f"{path} is not a worker's slice file: {plain(str(error))}") from None

    def _problem(self) -> str | None:
        """Return how the parts of a slice do not fit each other; None if they do."""
        problem = self.box.problem()
        if problem:
            return f"the slice {problem}"
        if self.auxiliary is not None and tuple(self.auxiliary.shape[1:]) != self.box.sample_shape:
            return f"its auxiliary samples are of shape {tuple(self.auxiliary.shape[1:])}"
        for x, y in ((self.x, self.y), (self.x_test, self.y_test)):
            if x is None:
                if y is not None:
                    return "it has labels of test samples, and no test samples"
                continue
            if x.dim() < 2 or not len(x) or tuple(x.shape[1:]) != self.box.shape or not x.is_floating_point():
                return f"its samples are {x.dtype} of shape {tuple(x.shape)}, expected (N, *{self.box.shape})"
            if not bool(torch.isfinite(x).all()):
                return "it has values that are not finite"
            if (y is None) != (self.y is None):
                return "it has labels of training or test samples, and not of both"
            if y is not None and (y.dtype not in (torch.int64, torch.float32) or y.shape != x.shape[:1]):
                return f"its labels are {y.dtype} of shape {tuple(y.shape)} for {len(x)} samples"
            if y is not None and y.is_floating_point():
                if self.classes != 1 or not bool(torch.isfinite(y).all()):
                    return "its labels are numbers, and not all of them finite ones of one kind"
            elif y is not None and not 0 <= int(y.min()) <= int(y.max()) < self.classes <= CLASSES:
                return f"its labels are from {int(y.min())} to {int(y.max())}, and it says {self.classes} classes"
        return None


def _bounds(value: Any) -> Shape:
    """Return one of a box's three rows of numbers."""
    whole = isinstance(value, list) and len(value) <= DIMENSIONS
    if not whole or not all(type(one) is int and 0 <= one <= FEATURES for one in value):
        raise ValueError(f"its bounds are not at most {DIMENSIONS} whole numbers")
    return tuple(value)


def load_data(config: RunConfig) -> Data:
    """Load the whole data set that a config names."""
    plugin = _plugin(config)
    with datasets.guard(config.data.name, plugin, "load"):
        return check_data(plugin.load(), config.data.name)


def data_facts(config: RunConfig) -> Facts:
    """Return the facts of the data set that a config names, loading no more of it than that takes."""
    plugin = _plugin(config)
    if type(plugin).facts is DataSet.facts:
        return Facts.of(load_data(config))
    with datasets.guard(config.data.name, plugin, "facts"):
        return check_facts_of(plugin.facts(), config.data.name)


def _plugin(config: RunConfig) -> DataSet:
    topology = config.topology
    at_a_worker = not topology.is_horizontal and not topology.labels_at_coordinator
    named = datasets.build(config.data).with_labels_at(topology.label_holder if at_a_worker else None)
    return named.predicting_numbers() if config.training.loss == "squared" else named


def check_facts(config: RunConfig, facts: Facts) -> None:
    """Refuse a run that the data set has too little for."""
    if config.federation.batch_size > facts.samples:
        size = config.federation.batch_size
        raise UserError(f"federation.batch_size: {size} is more than the {facts.samples} samples")
    if config.training.evaluate_every and not facts.test_samples:
        raise UserError("training.evaluate_every: there are no test samples to evaluate on (data.test_samples)")
    if config.auxiliary >= facts.samples:
        raise UserError(f"auxiliary: {config.auxiliary} of {facts.samples} samples leave none to find out about")
    problem = loss_of(config.training).problem(facts.classes) if facts.classes else None
    if problem:
        raise UserError(problem)
    if not facts.classes:
        raise UserError("data: all labels are the same; there is nothing to learn")


def boxes_of(data: Data | Facts, config: RunConfig) -> list[Box]:
    """Return the slice of every worker with features: as the config says, as the data set says, or divided evenly."""
    if config.topology.is_horizontal:
        return [_whole(data)]
    workers, slices = config.topology.feature_holders, config.federation.slices
    if not data.columns:
        return partition(data.sample_shape, workers, slices)
    widths = [column.width for column in data.columns]
    if data.groups is None:
        return column_boxes(widths, partition((len(widths),), workers, slices))
    if slices is not None:
        raise UserError("federation.slices: the data set says already which columns each worker holds")
    groups = data.groups
    if not config.federation.label_holder_features and len(groups) == workers + 1:
        check_alone(config, groups[-1], "data")
        groups = groups[:-1]
    if len(groups) != workers:
        raise UserError(f"federation.workers: {workers}, but data has columns for {len(groups)} workers")
    if 0 in groups:
        raise UserError(f"data: worker {groups.index(0)} has no columns; {NONE}")
    edges = pairwise(accumulate(groups, initial=0))
    return column_boxes(widths, partition((len(widths),), workers, [f"{first}:{last}" for first, last in edges]))


def check_alone(config: RunConfig, columns: int, source: str) -> None:
    """Refuse columns at a label holder that is said to have none."""
    if columns:
        raise UserError(
            f"{source}: the label holder, worker {config.topology.label_holder}, has {columns} columns, and "
            f"federation.label_holder_features is false: set it to true, or leave the columns out"
        )


def slice_for(data: Data, config: RunConfig, worker: int) -> WorkerData:
    """Return what one worker of the federation holds of the data."""
    if config.topology.is_horizontal:
        return _share_for(data, config, worker)
    box = dict(enumerate(boxes_of(data, config))).get(worker, Box.nothing(data.sample_shape))
    x_test = None if data.x_test is None else box.cut(data.x_test)
    labels = (data.y, data.y_test, data.classes) if config.topology.holds_labels(worker) else ()
    held = WorkerData(box, box.cut(data.x), digest(data.ids), x_test, *labels)
    knows = config.auxiliary and config.curious_seat(worker) is not None
    return replace(held, auxiliary=data.x[: config.auxiliary]) if knows else held


def _share_for(data: Data, config: RunConfig, worker: int) -> WorkerData:
    """Return the samples of one worker of a horizontal federation: a run of those to train with, and of the tests."""
    workers = config.federation.workers
    shares = config.topology.even_shares(len(data.x), config.federation.batch_size)
    own = even_runs(len(data.x), workers)[worker]
    tested = even_runs(0 if data.x_test is None else len(data.x_test), workers)[worker]
    x_test = None if data.x_test is None or tested.start == tested.stop else data.x_test[tested]
    y_test = None if data.y_test is None or x_test is None else data.y_test[tested]
    own_ids = digest(data.ids[own])
    return WorkerData(_whole(data), data.x[own], own_ids, x_test, data.y[own], y_test, data.classes, max(shares))


def _whole(data: Data | Facts) -> Box:
    if data.groups is not None:
        raise UserError(
            "data: it says which columns each worker holds, and in a horizontal federation each has all of them; "
            "give one file for all (data.path) and no data.columns"
        )
    return Box.all(data.sample_shape)


def write_slices(config: RunConfig, data: Data, folder: Path) -> list[Path]:
    """Write a file with its own slice for each party, so that no party's process ever holds another's features.

    Where the coordinator has the labels, their file is the last.
    """
    paths = []
    for worker in range(config.topology.parties):
        path = folder / (LABELS if worker == config.federation.workers else f"worker-{worker}.safetensors")
        slice_for(data, config, worker).save(path)
        paths.append(path)
    return paths


def digest(ids: Sequence[str]) -> bytes:
    """Return SHA-256 over the sample ids in order."""
    total = hashlib.sha256()
    for name in ids:
        encoded = name.encode(errors="surrogateescape")  # an id may be a file's name, which is any bytes
        total.update(len(encoded).to_bytes(4, "little") + encoded)
    return total.digest()
