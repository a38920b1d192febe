"""A run's curves and pictures for TensorBoard, below `events/`: coordinator and referee each add a file there."""

import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vfl.files.archive import read_archive
from vfl.folder.grid import in_rows
from vfl.folder.record import Record
from vfl.folder.summary import Summary

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def write_events(out: Path, record: Record) -> None:
    """Write what is known without the truth: every round's loss and learning rate, evaluations, recovered images."""
    if not tensorboard_is_there():
        return
    with _writer(out) as writer:
        for number, loss in enumerate(record.train.losses, start=1):
            writer.add_scalar("train/loss", loss, number)
        for number, rate in enumerate(record.train.rates, start=1):
            writer.add_scalar("train/learning_rate", rate, number)
        for tested in record.train.evaluations:
            writer.add_scalar("test/loss", tested.loss, tested.round)
            if math.isfinite(tested.accuracy):
                writer.add_scalar("test/accuracy", tested.accuracy, tested.round)
        x = _recovered(out)
        if x is not None and _is_image(x):
            writer.add_image("attack/recovered", in_rows(torch.nan_to_num(x, nan=0.5)).clamp(0, 1), record.rounds)


def write_scores(out: Path, summary: Summary, x: Tensor | None, truth: Tensor) -> None:
    """Write what the referee found: how good the attack was by which round, and real images above recovered ones."""
    if not tensorboard_is_there():
        return
    attack, rounds = summary.attack, summary.rounds
    with _writer(out) as writer:
        for name in ("psnr_mean", "r2"):
            curve = {step.round: getattr(step, name) for step in attack.over_rounds or []}
            curve[rounds] = getattr(attack, name) if getattr(attack, name) is not None else curve.get(rounds)
            for number, value in sorted(curve.items()):
                if value is not None:
                    writer.add_scalar(f"attack/{name}", value, number)
        if x is not None and _is_image(x):
            writer.add_image("attack/real_above_recovered", in_rows(truth, x).clamp(0, 1), rounds)


def tensorboard_is_there() -> bool:
    """Tell whether TensorBoard is installed, which is an extra: a run writes `events/` only where somebody has it."""
    return find_spec("tensorboard") is not None


def _recovered(out: Path) -> Tensor | None:
    path = out / "recovered.npz"
    if not path.exists():
        return None
    arrays = read_archive(path, ("x",))
    return torch.tensor(arrays["x"]) if "x" in arrays else None


def _is_image(x: Tensor) -> bool:
    """Tell whether samples are images that can be shown: grey or in colour."""
    return x.dim() == 4 and x.shape[1] in (1, 3)


def _writer(out: Path) -> "SummaryWriter":
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(out / "events"))
