"""What the federation leaves behind: its checkpoints hold it, and with the recovery it makes a run's summary."""

import io
import math
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import ConfigDict, Field

from vfl.config import RunConfig
from vfl.files import write_atomically
from vfl.folder import summary
from vfl.folder.recorded_config import RecordedConfig
from vfl.folder.schema import Live
from vfl.folder.versions import made_with
from vfl.models.whole import state_dict
from vfl.observation import ModelTensors, Setting
from vfl.optimisers.training import EarlyStop
from vfl.recovery import Recovery, spans

_SCORES = ("psnr_mean", "psnr_median", "psnr_min", "mse_mean", "ssim_mean", "share_30db", "psnr_baseline")
"""The scores of images are null in a summary without a referee."""


class Record(Live):
    """The rounds so far: parts of the summary, and what its other numbers come from."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    rounds: int = 0
    seconds: float = 0.0
    """From the first round on."""
    train: summary.Train = Field(default_factory=summary.Train)
    bytes: summary.Bytes = Field(default_factory=summary.Bytes)
    withheld: dict[int, int] = Field(default_factory=dict)
    """The first round in which a worker uploaded nothing, by its own decision."""
    disturbances: list[summary.Disturbance] = Field(default_factory=list)
    ends: list[float] = Field(default_factory=list)
    """When each round ended, in seconds from the start."""
    memory: list[int] = Field(default_factory=list)
    """The coordinator's resident memory after each round, in bytes."""
    began: float = Field(default_factory=time.monotonic, exclude=True)
    """On the monotonic clock, as are all that are in no checkpoint."""
    ended: str = Field("complete", exclude=True)
    """Why the rounds ended."""
    queue: summary.Queue = Field(default_factory=summary.Queue, exclude=True)
    model: ModelTensors | None = Field(None, exclude=True)
    """The parameters after the last round."""

    @property
    def elapsed(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self.began

    @property
    def last_evaluation(self) -> summary.Evaluated | None:
        """Return the evaluation of the model as it is after the last round."""
        last = self.train.evaluations[-1] if self.train.evaluations else None
        return last if last and last.round == self.rounds else None

    def has_converged(self, rule: EarlyStop | None) -> bool:
        """Tell whether training may end with the evaluations that it has."""
        # What was evaluated before the first step says nothing of training.
        losses = [one.loss for one in self.train.evaluations if any(self.train.rates[: one.round])]
        return rule is not None and rule.is_due(losses)

    @property
    def rounds_per_second(self) -> float | None:
        """Return the rate without the first tenth of the rounds, in which all processes warm up."""
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

    def of_whole_rounds(self) -> Self:
        """Return a copy without what a round that was cut off has left: its loss, or that a worker withheld in it."""
        copy = type(self).model_validate(self.model_dump())
        del copy.train.losses[self.rounds :]
        copy.withheld = {worker: number for worker, number in self.withheld.items() if number <= self.rounds}
        return copy


def write_summary(
    out: Path,
    config: RunConfig,
    setting: Setting | None,
    record: Record,
    *,
    recovery: Recovery | None = None,
    attack_seconds: float = 0.0,
    ended: str | None = None,
) -> None:
    """Write what is known without the ground truth; the referee adds the scores."""
    federation, memory = config.federation, record.memory[-1] if record.memory else None
    written = summary.Summary(
        config=RecordedConfig.model_validate(config.model_dump(mode="json")),
        seed=config.seed,
        versions={**made_with()},
        ended=ended or record.ended,
        workers=federation.workers,
        samples=setting.samples if setting else None,
        shares=list(setting.topology.shares) if setting and setting.topology.is_horizontal else None,
        batch_size=setting.batch_size if setting else federation.batch_size,
        rounds=record.rounds,
        seconds=summary.Seconds(total=record.elapsed, federation=record.seconds, attack=attack_seconds),
        rounds_per_second=record.rounds_per_second,
        disturbances=record.disturbances,
        withheld={str(worker): number for worker, number in sorted(record.withheld.items())},
        coordinator_memory=summary.Memory(last=memory, growth=record.memory_growth),
        bytes=record.bytes,
        train=_train(record),
        attack=attack_part(config, recovery or Recovery(used=()), record.queue),
    )
    summary.save_summary(out, written)


def write_model(out: Path, model: ModelTensors | None) -> None:
    """Write the parameters as a state dict of `vfl.models.whole.WholeModel`, if there was a round."""
    if model is not None:
        buffer = io.BytesIO()  # on a full disk torch itself fails in a way of its own
        torch.save(state_dict(model), buffer)
        write_atomically(out / "model.pt", lambda path: path.write_bytes(buffer.getbuffer()))


def _train(record: Record) -> summary.Train:
    losses, tested = record.train.losses, record.last_evaluation
    ends = {"loss_first": losses[0], "loss_last": losses[-1]} if losses else {}
    after = {"test_loss": tested.loss} if tested else {}
    if tested and math.isfinite(tested.accuracy):  # of a number none is right or wrong
        after["test_accuracy"] = tested.accuracy
    return record.train.model_copy(update=ends | after)


def attack_part(config: RunConfig, recovery: Recovery, queue: summary.Queue | None = None) -> summary.Attack:
    """Return what a summary says of an attack; the referee adds the scores."""
    return summary.Attack(
        name=config.attack.name,
        adversary=config.adversary,
        **({"elsewhere": True} if recovery.elsewhere else {}),
        used=list(recovery.used),
        ledger=_ledger(recovery),
        notes=list(recovery.notes),
        cells=len(recovery.cells),
        certified=None if recovery.certified is None else int(recovery.certified.sum()),
        altered=None if recovery.altered is None else list(recovery.altered),
        queue=queue or summary.Queue(),
        **dict.fromkeys(_SCORES),
    )


def _ledger(recovery: Recovery) -> summary.LedgerWords | None:
    if recovery.ledger is None:
        return None
    ledger = recovery.ledger
    count = len(ledger.rounds)  # thousands of numbers would hide the rest
    about: dict[str, Any] = asdict(ledger) | {"rounds": spans(ledger.rounds), "other": list(ledger.other)}
    return summary.LedgerWords(**about, count=count, sentence=ledger.sentence)
