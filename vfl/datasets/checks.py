"""What a data set plug-in loads is checked for all that the rest of the program relies on."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from vfl.datasets import Data, Facts
from vfl.errors import UserError
from vfl.limits import CLASSES, plain


def check_data(data: object, name: str) -> Data:
    """Return the data if their parts fit each other; else raise an error that names the plug-in and the problem."""
    if not isinstance(data, Data):
        raise UserError(f"data.name: load() of {name} returned {type(data).__name__}, expected a vfl.datasets.Data")
    problem = next(_problems(data), None)
    if problem:
        raise UserError(f"data.name: {name} loaded data that cannot be used: {plain(problem)}; correct its load()")
    check_classes(data)
    return data


def check_classes(data: Data) -> None:
    """Refuse several training samples that are all of one class."""
    count, first = len(data.y), int(data.y[0])
    if count > 1 and bool((data.y == first).all()):
        called = repr(data.class_names[first]) if data.class_names else first
        raise UserError(
            f"data: all {count} samples to train with are of the class {called}; there is nothing to learn: mix them, "
            f"or change data.samples"
        )


def check_facts_of(facts: object, name: str) -> Facts:
    """Return the facts if they are `Facts`."""
    if not isinstance(facts, Facts):
        raise UserError(f"data.name: facts() of {name} returned {type(facts).__name__}, expected a vfl.datasets.Facts")
    return facts


def _problems(data: Data) -> Iterator[str]:
    """Yield what is wrong; only the first is safe to ask for, as later checks rely on the earlier ones."""
    if data.kind not in ("image", "table"):
        yield f"kind is {data.kind!r}, expected 'image' or 'table'"
    if type(data.classes) is not int or not 0 <= data.classes <= CLASSES:
        yield f"classes is {data.classes!r}, expected a whole number up to {CLASSES}"
    yield from _pair_problems(data, "")
    if (data.x_test is None) != (data.y_test is None):
        yield "of x_test and y_test one is None; both are there, or neither is"
    if data.x_test is not None:
        yield from _pair_problems(data, "_test")
        if data.x_test.shape[1:] != data.x.shape[1:]:
            yield f"x_test has samples of shape {tuple(data.x_test.shape[1:])}, x of {data.sample_shape}"
    if not isinstance(data.ids, tuple) or not all(isinstance(one, str) for one in data.ids):
        yield "ids is not a tuple of texts"
    if len(data.ids) != len(data.x):
        yield f"there are {len(data.x)} samples and {len(data.ids)} ids"
    if len(set(data.ids)) < len(data.ids):
        yield "two samples have the same id"
    width = sum(column.width for column in data.columns)
    if data.columns and (width,) != data.sample_shape:
        yield f"its columns make {width} features, and samples have the shape {data.sample_shape}"
    if data.groups is not None and sum(data.groups) != len(data.columns):
        yield f"groups divides {sum(data.groups)} columns, and there are {len(data.columns)}"
    if data.class_names and len(data.class_names) != data.classes:
        yield f"there are {data.classes} classes and {len(data.class_names)} class_names"


def _pair_problems(data: Data, part: Literal["", "_test"]) -> Iterator[str]:
    """Yield what is wrong with the samples to train (or to test) with and their labels."""
    of_x, of_y = f"x{part}", f"y{part}"
    x, y = getattr(data, of_x), getattr(data, of_y)
    shape = "(N, channels, height, width)" if data.kind == "image" else "(N, columns)"
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        yield f"{of_x} is of the type {type(x).__name__} and {of_y} {type(y).__name__}, expected tensors"
        return
    if x.dim() != (4 if data.kind == "image" else 2) or not x.numel() or x.dtype != torch.float32:
        yield f"{of_x} is {x.dtype} of shape {tuple(x.shape)}, expected torch.float32 of shape {shape}"
    if not bool(torch.isfinite(x).all()):
        yield f"{of_x} has missing or infinite values"
    if data.kind == "image" and not 0 <= float(x.min()) <= float(x.max()) <= 1:
        yield f"{of_x} has pixels from {float(x.min()):g} to {float(x.max()):g}, expected 0 to 1"
    if y.dtype != torch.int64 or y.shape != x.shape[:1]:
        yield f"{of_y} is {y.dtype} of shape {tuple(y.shape)}, expected torch.int64 of shape ({len(x)},)"
    if not 0 <= int(y.min()) <= int(y.max()) < data.classes:
        yield f"{of_y} has labels from {int(y.min())} to {int(y.max())}, and classes is {data.classes}"
