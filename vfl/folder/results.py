"""A run's folder: `summary.json`, `recovered.npz` and `model.pt`, written whole or not at all."""

import io
import json
import math
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vfl.config import RunConfig
from vfl.errors import UserError
from vfl.files import read_plain, remove, write_atomically, write_text
from vfl.files.archive import save_arrays
from vfl.folder.versions import versions
from vfl.limits import JSON_BYTES
from vfl.models.whole import state_dict
from vfl.observation import ModelTensors, Setting
from vfl.partition import assemble
from vfl.recovery import Recovery, spans

SCORES = ("psnr_mean", "psnr_median", "psnr_min", "ssim_mean", "share_30db", "psnr_baseline")
"""What the referee adds for images; without a referee they stay null."""


CERTIFIED = 1e-2
"""Certificates below this speak for a sample; wrong ones are usually far above, right ones far below."""


@dataclass(frozen=True)
class Evaluated:
    """The model after a round, on the test samples: mean loss, share of right answers."""

    round: int
    loss: float
    accuracy: float


@dataclass
class Queue:
    """How the attack kept up with the rounds."""

    spilled: int = 0
    """Rounds that had to wait for it on disk."""
    longest: int = 0
    """The most rounds that waited for it, or were being looked at, at once."""


@dataclass(frozen=True)
class Disturbance:
    """Something that went wrong and was mended: in which round, what, for how long, and how many rounds it undid."""

    round: int
    reasons: tuple[str, ...]
    seconds: float
    redone: int | None
    """None if nobody knows: the coordinator itself was lost, and kept no transcript."""


@dataclass
class Record:
    """What the federation leaves behind, besides what its observers kept."""

    rounds: int = 0
    seconds: float = 0.0
    began: float = field(default_factory=time.monotonic)
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    """The learning rate of each round."""
    evaluations: list[Evaluated] = field(default_factory=list)
    stopped_early: bool = False
    """Whether training ended before the planned rounds, as the test loss no longer improved."""
    model: ModelTensors | None = None
    """The parameters after the last round."""
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_peer: int = 0
    bytes_raw: int = 0
    """The tensors alone, without announcements and framing."""
    ends: list[float] = field(default_factory=list)
    """When each round ended, on the monotonic clock."""
    withheld: dict[int, int] = field(default_factory=dict)
    """The first round in which a worker uploaded nothing, by its own decision."""
    ended: str = "complete"
    """Why the rounds ended."""
    memory: list[int] = field(default_factory=list)
    """The coordinator's resident memory after each round, in bytes."""
    queue: Queue = field(default_factory=Queue)
    disturbances: list[Disturbance] = field(default_factory=list)

    @property
    def last_evaluation(self) -> Evaluated | None:
        """Return the evaluation of the model as it is after the last round."""
        last = self.evaluations[-1] if self.evaluations else None
        return last if last and last.round == self.rounds else None

    @property
    def rounds_per_second(self) -> float | None:
        """Return the rate without the first tenth of the rounds, in which everybody warms up."""
        first = len(self.ends) // 10
        if len(self.ends) - first < 2:
            return None
        return (len(self.ends) - 1 - first) / (self.ends[-1] - self.ends[first])

    @property
    def last_round_seconds(self) -> float:
        """Return how long the last round took, 0 before there were two."""
        return self.ends[-1] - self.ends[-2] if len(self.ends) > 1 else 0.0

    @property
    def memory_growth(self) -> int | None:
        """Return by how many bytes the coordinator grew: the median of the last tenth of the rounds, less the second's.

        Medians, because single readings differ by the uploads that happen to be in memory.
        """
        tenth = len(self.memory) // 10
        if not tenth:
            return None
        return int(statistics.median(self.memory[-tenth:]) - statistics.median(self.memory[tenth : 2 * tenth]))


def write_summary(
    out: Path,
    config: RunConfig,
    setting: Setting | None,
    record: Record,
    recovery: Recovery | None,
    attack_seconds: float = 0.0,
    ended: str | None = None,
) -> None:
    """Write what is known without the ground truth; the referee adds the scores."""
    tested = record.last_evaluation
    summary = {
        "config": config.model_dump(mode="json"),
        "seed": config.seed,
        "versions": versions(),
        "ended": ended or record.ended,
        "workers": config.federation.workers,
        "samples": setting.samples if setting else None,
        "shares": list(setting.topology.shares) if setting and setting.topology.is_horizontal else None,
        "batch_size": setting.batch_size if setting else config.federation.batch_size,
        "rounds": record.rounds,
        "seconds": {
            "total": time.monotonic() - record.began,
            "federation": record.seconds,
            "attack": attack_seconds,
        },
        "rounds_per_second": record.rounds_per_second,
        "disturbances": [asdict(one) for one in record.disturbances],
        "withheld": {str(worker): number for worker, number in sorted(record.withheld.items())},
        "coordinator_memory": {
            "last": record.memory[-1] if record.memory else None,
            "growth": record.memory_growth,
        },
        "bytes": {"up": record.bytes_up, "down": record.bytes_down, "peer": record.bytes_peer, "raw": record.bytes_raw},
        "train": {
            "loss_first": record.losses[0] if record.losses else None,
            "loss_last": record.losses[-1] if record.losses else None,
            "test_accuracy": tested.accuracy if tested else None,
            "test_loss": tested.loss if tested else None,
            "losses": record.losses,
            "rates": record.rates,
            "evaluations": [asdict(one) for one in record.evaluations],
            "stopped_early": record.stopped_early,
        },
        "attack": {
            "name": config.attack.name,
            "used": list(recovery.used) if recovery else [],
            "ledger": _ledger(recovery),
            "notes": list(recovery.notes) if recovery else [],
            "cells": len(recovery.cells) if recovery else 0,
            "certified": _certified(recovery),
            "altered": list(recovery.altered) if recovery and recovery.altered is not None else None,
            "queue": asdict(record.queue),
            **dict.fromkeys(SCORES),
        },
    }
    save_summary(out, summary)


def _ledger(recovery: Recovery | None) -> dict[str, Any] | None:
    if recovery is None or recovery.ledger is None:
        return None
    ledger = recovery.ledger
    count = len(ledger.rounds)  # thousands of numbers would hide the rest
    return {**asdict(ledger), "rounds": spans(ledger.rounds), "count": count, "sentence": ledger.sentence}


def _certified(recovery: Recovery | None) -> int | None:
    """Count the samples whose certificates are all small: without the truth, the best guess at what is right."""
    if recovery is None or recovery.certificates is None:
        return None
    return int((recovery.certificates < CERTIFIED).all(1).sum())


def save_summary(out: Path, summary: dict[str, Any]) -> None:
    """Write summary.json."""
    text = json.dumps(_finite(summary), indent=1, allow_nan=False)
    write_text(out / "summary.json", text + "\n")


def _finite(tree: Any) -> Any:
    """Return the tree with null for numbers that JSON cannot write."""
    if isinstance(tree, dict):
        return {key: _finite(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


_FILES = ("summary.json", "recovered.npz", "model.pt", "report.html", "rows.json", "rows.csv")
_FOLDERS: dict[str, tuple[str, ...]] = {"snapshots": ("*.npz",)}
_KEPT_FILES = ("journal.jsonl",)
_KEPT_FOLDERS = {"transcript": ("*.safetensors", "meta.json"), "checkpoints": ("*.safetensors",)}
"""What a run leaves in its folder, and what of it a run that is resumed goes on with."""


def clear_run(out: Path, resumed: bool = False) -> None:
    """Remove what an earlier run left in a folder, so that nothing of it is taken for this run's.

    A run that is resumed goes on with its journal, transcript and checkpoints.
    """
    for name in (*_FILES, *(() if resumed else _KEPT_FILES)):
        (out / name).unlink(missing_ok=True)
    for path in out.glob("*.png"):
        path.unlink()
    for name, patterns in (_FOLDERS | ({} if resumed else _KEPT_FOLDERS)).items():
        if (out / name).is_symlink():  # of whoever made the folder: what it leads to is not this run's
            (out / name).unlink()
        for path in (path for pattern in patterns for path in (out / name).glob(pattern)):
            path.unlink()
    remove(out / "events")


def load_summary(out: Path) -> dict[str, Any]:
    """Read summary.json."""
    try:
        summary: dict[str, Any] = json.loads(read_plain(out / "summary.json", JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{out} is not a run's folder: summary.json cannot be read ({error})") from None
    return summary


def write_model(out: Path, model: ModelTensors | None) -> None:
    """Write the parameters as a state dict of `vfl.models.whole.WholeModel`, if there was a round."""
    if model is not None:
        buffer = io.BytesIO()  # on a full disk torch itself fails in a way of its own
        torch.save(state_dict(model), buffer)
        write_atomically(out / "model.pt", lambda path: path.write_bytes(buffer.getbuffer()))


def write_recovery(out: Path, setting: Setting, recovery: Recovery) -> None:
    """Write what the attack recovered: whole samples `x` where it got that far, representations, labels, cells."""
    arrays = _samples(setting, recovery)
    for worker, part in enumerate(recovery.representations or ()):
        arrays[f"representation_{worker}"] = part.float().numpy()
    if recovery.layers is not None:
        arrays["layers"] = np.array(recovery.layers)
    if recovery.certificates is not None:
        arrays["certificates"] = recovery.certificates.numpy()
    save_arrays(out / "recovered.npz", arrays)


def write_snapshot(out: Path, setting: Setting, recovery: Recovery, number: int, seconds: float) -> None:
    """Write the samples that the attack has recovered after some rounds and seconds."""
    if recovery.slices is not None:
        arrays = _samples(setting, recovery) | {"round": np.array(number), "seconds": np.array(seconds)}
        save_arrays(out / "snapshots" / f"{number:08d}.npz", arrays)


PARTIAL = "snapshots/partial.npz"
"""The attack's newest estimate while it recovers; gone when it has."""


def write_partial(out: Path, setting: Setting, recovery: Recovery) -> None:
    """Write the samples of an unfinished estimate."""
    if recovery.slices is not None:
        save_arrays(out / PARTIAL, _samples(setting, recovery))


def _samples(setting: Setting, recovery: Recovery) -> dict[str, np.ndarray]:
    arrays = {"cell": recovery.cell_of(setting.samples).numpy()}
    if recovery.slices is not None:
        arrays["x"] = assemble(setting.boxes, [part.float() for part in recovery.slices]).numpy()
    if recovery.labels is not None:
        arrays["labels"] = recovery.labels.numpy()
    return arrays
