"""Checks of what a defence plug-in returns: a misfit ends the run with a sentence that names the plug-in."""

import json
from collections.abc import Mapping
from operator import index
from typing import Any

import torch
from torch import Tensor

from vfl.errors import RunFailedError
from vfl.maths.tensors import Kind, all_finite, described, kind_of
from vfl.observation import Tensors


def fitting_upload(defence: str, uploaded: Any, kinds: Mapping[str, Kind], finite: bool) -> Tensors:
    """Return what `apply` made of gradients of these kinds, without what autograd keeps.

    What was `finite` must have stayed so; else training diverged, and that is not the defence's fault.
    """
    if not isinstance(uploaded, Mapping):
        raise _misfit(defence, "apply", f"it must return the tensors by name, not {described(uploaded)}")
    if uploaded.keys() != kinds.keys():
        wrong = sorted(map(str, uploaded.keys() ^ kinds.keys()))
        what = "lacks" if wrong[0] in kinds else "has added"
        raise _misfit(defence, "apply", f"it must return tensors of the names that it was given, and {what} {wrong[0]}")
    for name, kind in kinds.items():
        tensor = uploaded[name]
        if not isinstance(tensor, Tensor) or kind_of(tensor) != kind:
            raise _misfit(defence, "apply", f"{name} must stay {kind}, and is {described(tensor)}")
    fitting = {name: uploaded[name].detach() for name in kinds}
    if finite and not all_finite(*fitting.values()):
        broken = next(name for name, tensor in fitting.items() if not all_finite(tensor))
        raise _misfit(defence, "apply", f"{broken} must stay finite, and has NaN or infinity")
    return fitting


def fitting_penalty(defence: str, penalty: Any) -> Tensor | None:
    """Return what a defence adds to the loss of a batch."""
    if penalty is not None and not (isinstance(penalty, Tensor) and penalty.dim() == 0):
        raise _misfit(
            defence, "penalty", f"it must return a tensor that is one number or None, not {described(penalty)}"
        )
    return penalty


def fitting_schedule(defence: str, schedule: Any) -> str:
    """Return how batches are drawn, as `schedule` says it."""
    if not isinstance(schedule, str):
        raise _misfit(defence, "schedule", f"it must return a schedule's name, not {described(schedule)}")
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
        given = described(over) if number is None or isinstance(over, bool) else number
        raise _misfit(defence, "mean_over", f"it must be a whole number from 1 on or None, not {given}")
    return number


def fitting_rows(defence: str, rows: Any, samples: int) -> Tensor:
    """Return the rows of a round."""
    if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.dim() != 1:
        raise _misfit(defence, "rows", f"it must return an int64 tensor of one dimension, not {described(rows)}")
    wrong = rows[(rows < 0) | (rows >= samples)]
    if len(wrong):
        raise _misfit(defence, "rows", f"it must return rows from 0 to {samples - 1}, not {int(wrong[0])}")
    return rows


def fitting_report(defence: str, report: Any) -> dict[str, Any]:
    """Return what there is to say at the end."""
    if not isinstance(report, dict):
        raise _misfit(defence, "report", f"it must return a dict, not {described(report)}")
    try:
        json.dumps(report)
    except (TypeError, ValueError) as error:
        raise _misfit(defence, "report", f"it must return what JSON can hold: {error}") from None
    return report


def _misfit(defence: str, doing: str, what: str) -> RunFailedError:
    return RunFailedError(f"the defence plug-in {defence} failed in {doing}: {what}")
