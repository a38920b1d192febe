"""What one worker holds, in memory and as a file: its slice of every sample, and the labels at the label holder."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vfl.config import RunConfig
from vfl.datasets import Data, Facts, datasets
from vfl.errors import UserError
from vfl.limits import CLASSES, DIMENSIONS, FEATURES, plain
from vfl.partition import Box, Shape, column_boxes, partition


@dataclass(frozen=True)
class WorkerData:
    """One worker's data. Only the label holder has y, y_test and classes."""

    box: Box
    x: Tensor
    ids_digest: bytes
    x_test: Tensor | None = None
    y: Tensor | None = None
    y_test: Tensor | None = None
    classes: int = 0

    def save(self, path: Path) -> None:
        """Write the slice to a file."""
        named = {"x": self.x, "x_test": self.x_test, "y": self.y, "y_test": self.y_test}
        tensors = {name: tensor.contiguous() for name, tensor in named.items() if tensor is not None}
        about = {
            "sample_shape": self.box.sample_shape,
            "start": self.box.start,
            "stop": self.box.stop,
            "ids_digest": self.ids_digest.hex(),
            "classes": self.classes,
        }
        save_file(tensors, path, metadata={"slice": json.dumps(about)})

    @staticmethod
    def load(path: Path) -> "WorkerData":
        """Read the slice from a file."""
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["slice"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            data = WorkerData(
                Box(_bounds(about["sample_shape"]), _bounds(about["start"]), _bounds(about["stop"])),
                tensors["x"],
                bytes.fromhex(about["ids_digest"]),
                tensors.get("x_test"),
                tensors.get("y"),
                tensors.get("y_test"),
                int(about["classes"]),
            )
            problem = data._problem()
            if problem:
                raise ValueError(problem)
            return data
        except FileNotFoundError:
            raise UserError(f"there is no slice file {path}") from None
        except (SafetensorError, KeyError, TypeError, ValueError, OSError, RecursionError, RuntimeError) as error:
            raise UserError(f"{path} is not a worker's slice file: {plain(str(error))}") from None

    def _problem(self) -> str | None:
        """Return in what the parts of a slice do not fit each other."""
        problem = self.box.problem()
        if problem:
            return f"the slice {problem}"
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
            if y is not None and (y.dtype != torch.int64 or y.shape != x.shape[:1]):
                return f"its labels are {y.dtype} of shape {tuple(y.shape)} for {len(x)} samples"
            if y is not None and not 0 <= int(y.min()) <= int(y.max()) < self.classes <= CLASSES:
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
    plugin = datasets.build(config.data)
    with datasets.guard(config.data.name, plugin, "load"):
        return plugin.load()


def data_facts(config: RunConfig) -> Facts:
    """Return what the data set that a config names is, loading no more of it than that takes."""
    plugin = datasets.build(config.data)
    with datasets.guard(config.data.name, plugin, "facts"):
        return plugin.facts()


def boxes_of(data: Data | Facts, config: RunConfig) -> list[Box]:
    """Return the slice of every worker with features: as the config says, as the data set says, or divided evenly."""
    workers, slices = config.federation.feature_holders, config.federation.slices
    if not data.columns:
        return partition(data.sample_shape, workers, slices)
    widths = [column.width for column in data.columns]
    if data.groups is None:
        return column_boxes(widths, partition((len(widths),), workers, slices))
    if slices is not None:
        raise UserError("federation.slices: the data set says already which columns each worker holds")
    if len(data.groups) != workers:
        raise UserError(f"federation.workers: {workers}, but data has columns for {len(data.groups)} workers")
    edges = pairwise(accumulate(data.groups, initial=0))
    return column_boxes(widths, partition((len(widths),), workers, [f"{first}:{last}" for first, last in edges]))


def slice_for(data: Data, config: RunConfig, worker: int) -> WorkerData:
    """Return what one worker of the federation holds of the data."""
    box = dict(enumerate(boxes_of(data, config))).get(worker, Box.nothing(data.sample_shape))
    holds_labels = worker == config.federation.label_holder
    return WorkerData(
        box,
        box.cut(data.x),
        digest(data.ids),
        None if data.x_test is None else box.cut(data.x_test),
        data.y if holds_labels else None,
        data.y_test if holds_labels else None,
        data.classes if holds_labels else 0,
    )


def write_slices(config: RunConfig, data: Data, folder: Path) -> list[Path]:
    """Give each worker a file with its own slice, so that none of them ever holds another's features."""
    paths = []
    for worker in range(config.federation.workers):
        path = folder / f"worker-{worker}.safetensors"
        slice_for(data, config, worker).save(path)
        paths.append(path)
    return paths


def digest(ids: Sequence[str]) -> bytes:
    """Return SHA-256 over the sample ids in order."""
    total = hashlib.sha256()
    for name in ids:
        encoded = name.encode()
        total.update(len(encoded).to_bytes(4, "little") + encoded)
    return total.digest()
