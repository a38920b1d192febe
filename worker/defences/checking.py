"""What a defence hands over, held against what it was given: what does not fit is told of with the defence's name."""

import json
from collections.abc import Mapping
from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vfl.errors import RunFailedError
from vfl.observation import Tensors


class Kind(NamedTuple):
    """What a defence must leave a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: torch.layout

    def __str__(self) -> str:
        """Return it in words."""
        sparse = "" if self.layout == torch.strided else f"{str(self.layout).removeprefix('torch.')} "
        return f"a {sparse}{str(self.dtype).removeprefix('torch.')} tensor of shape {self.shape}"


def kinds_of(tensors: Tensors) -> dict[str, Kind]:
    """Return the dtypes and shapes of tensors."""
    return {name: _kind(tensor) for name, tensor in tensors.items()}


def fitting_upload(defence: str, uploaded: Any, kinds: Mapping[str, Kind]) -> Tensors:
    """Return what `apply` made of gradients of these kinds, without what autograd keeps."""
    if not isinstance(uploaded, Mapping):
        raise _misfit(defence, "apply", f"it must return the tensors by name, not {_told(uploaded)}")
    if uploaded.keys() != kinds.keys():
        wrong = sorted(map(str, uploaded.keys() ^ kinds.keys()))
        what = "lacks" if wrong[0] in kinds else "has added"
        raise _misfit(defence, "apply", f"it must return tensors of the names that it was given, and {what} {wrong[0]}")
    for name, kind in kinds.items():
        tensor = uploaded[name]
        if not isinstance(tensor, Tensor) or _kind(tensor) != kind:
            raise _misfit(defence, "apply", f"{name} must stay {kind}, and is {_told(tensor)}")
    return {name: uploaded[name].detach() for name in kinds}


def fitting_schedule(defence: str, schedule: Any) -> str:
    """Return how batches are drawn, as `schedule` says it."""
    if not isinstance(schedule, str):
        raise _misfit(defence, "schedule", f"it must return a schedule's name, not {_told(schedule)}")
    return schedule


def fitting_mean(defence: str, over: Any) -> int | None:
    """Return the number that sums are divided by."""
    if over is None:
        return None
    try:
        number = index(over)
    except TypeError:
        number = None
    if number is None or number < 1 or isinstance(over, bool):
        told = _told(over) if number is None or isinstance(over, bool) else number
        raise _misfit(defence, "mean_over", f"it must be a whole number from 1 on or None, not {told}")
    return number


def fitting_rows(defence: str, rows: Any, samples: int) -> Tensor:
    """Return the rows of a round."""
    if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.dim() != 1:
        raise _misfit(defence, "rows", f"it must return an int64 tensor of one dimension, not {_told(rows)}")
    wrong = rows[(rows < 0) | (rows >= samples)]
    if len(wrong):
        raise _misfit(defence, "rows", f"it must return rows from 0 to {samples - 1}, not {int(wrong[0])}")
    return rows


def fitting_report(defence: str, report: Any) -> dict[str, Any]:
    """Return what there is to say at the end."""
    if not isinstance(report, dict):
        raise _misfit(defence, "report", f"it must return a dict, not {_told(report)}")
    try:
        json.dumps(report)
    except (TypeError, ValueError) as error:
        raise _misfit(defence, "report", f"it must return what JSON can hold: {error}") from None
    return report


def _kind(tensor: Tensor) -> Kind:
    return Kind(tensor.dtype, tuple(tensor.shape), tensor.layout)


def _told(thing: object) -> str:
    if isinstance(thing, Tensor):
        return str(_kind(thing))
    return f"{type(thing).__module__}.{type(thing).__name__}".removeprefix("builtins.")


def _misfit(defence: str, doing: str, told: str) -> RunFailedError:
    return RunFailedError(f"the defence plug-in {defence} failed in {doing}: {told}")
