"""`summary.json`: the one schema of a run's results. A new number is a field here, and is set where it is computed.

What a sweep and the report say of a number stands beside its field; docs/report.md tells where each is shown.
"""

import json
import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from vfl.errors import UserError
from vfl.files import read_plain, write_text
from vfl.folder.recorded_config import RecordedConfig
from vfl.folder.schema import Count, Finite, Live, Measure, Number, Part, Point, Some, Word, as_json, checked
from vfl.folder.scores import ColumnScore, PartyScore, Right, Step
from vfl.limits import JSON_BYTES, SAMPLES
from vfl.seats import Adversary

_NAME = "summary.json"
NEEDED = ("config.federation.workers", "samples", "rounds", "seconds", "bytes", "train", "attack.name", "attack.used")
"""The keys of a summary without which there is nothing to show."""

_decibels = partial(Number, unit="dB", form=".1f", highest_is_best=True)
_share = partial(Number, form=".3f", highest_is_best=True, limits=(0.0, 1.0))
_loss = partial(Number, form=".4f")
_seconds = partial(Number, unit="s")
_rounds = partial(Number, form=".0f")
_bytes = partial(Number, unit="bytes")


class Seconds(Part):
    """How long the run took."""

    total: Annotated[Measure, _seconds("time in all")] = None
    federation: Annotated[Measure, _seconds("time of the federation")] = None
    """From the first round to the last."""
    attack: Annotated[Measure, _seconds("time of the attack")] = None
    """After the last round."""


class Disturbance(Part):
    """Something that went wrong and was mended: in which round, what, for how long, and how many rounds it undid."""

    round: Count
    reasons: Some[Word]
    seconds: Finite
    redone: Count | None
    """None if it is not known: the coordinator itself was lost, and kept no transcript."""


class Memory(Part):
    """The coordinator's resident memory, in bytes."""

    last: Count | None = None
    growth: Annotated[int, Field(strict=True)] | None = None
    """The median of the last tenth of the rounds, less that of the second."""


class Bytes(Live):
    """What went over the wire."""

    up: Annotated[Count, _bytes("uploaded")] = 0
    down: Annotated[Count, _bytes("downloaded")] = 0
    peer: Annotated[Count, _bytes("between workers")] = 0
    raw: Count = 0
    """The tensors alone, without announcements and framing."""


class Evaluated(Part):
    """The model after a round, on the test samples: mean loss, share of right answers."""

    round: Count
    loss: Point
    accuracy: Point


class Train(Live):
    """What training looked like."""

    loss_first: Annotated[Measure, _loss("loss in the first round")] = None
    loss_last: Annotated[Measure, _loss("loss in the last round")] = None
    test_accuracy: Annotated[Measure, _share("test accuracy")] = None
    """Of the model after the last round."""
    test_loss: Measure = None
    losses: Some[Point] = Field(default_factory=list)
    rates: Some[Point] = Field(default_factory=list)
    """The learning rate of each round."""
    evaluations: Some[Evaluated] = Field(default_factory=list)
    stopped_early: bool = False
    """Whether training ended before the planned rounds, as the test loss no longer improved."""

    @property
    def loss_end(self) -> Annotated[float | None, _loss("training loss, last 5 % of rounds")]:
        """Return the mean loss of the last twentieth of the rounds."""
        last = self.losses[-max(1, math.ceil(len(self.losses) / 20)) :]
        return sum(last) / len(last) if last and all(map(math.isfinite, last)) else None


class LedgerWords(Part):
    """What the recovery rests on, as the attack's ledger has it (`vfl.recovery.Ledger`), and in words."""

    sentence: str | None = None


class Queue(Live):
    """How the attack kept up with the rounds."""

    spilled: Count = 0
    """Rounds that had to wait for it on disk."""
    longest: Count = 0
    """The most rounds that waited for it, or were being looked at, at once."""


class Attack(Part):
    """What the attack did, and how well; the referee adds the scores, in simulation only."""

    name: Word
    adversary: Adversary = "coordinator"
    """Who is curious, in the form of the config's key."""
    elsewhere: bool = False
    """Whether the attack ran at another party than the one whose folder this is, and its results are there."""
    used: Some[Word]
    ledger: LedgerWords | None = None
    notes: Some[Word] = Field(default_factory=list)
    cells: Count | None = None
    """Groups of samples that no batch tells apart."""
    certified: Count | None = None
    """Samples whose recovery explains all gradients that they took part in."""
    altered: Some[Measure] | None = None
    """For each worker the share of its rounds whose gradients look altered."""
    queue: Queue = Field(default_factory=Queue)
    psnr_mean: Annotated[Measure, _decibels("PSNR, mean")] = None
    """Of whole images, the slices put together."""
    psnr_slices: Annotated[Measure, _decibels("PSNR of slices, mean")] = None
    """Of each worker's slice alone, the mean over images and workers: what the paper's public code prints."""
    psnr_median: Annotated[Measure, _decibels("PSNR, median")] = None
    psnr_min: Annotated[Measure, _decibels("PSNR, worst")] = None
    mse_mean: Annotated[Measure, Number("MSE, mean", form=".1e")] = None
    ssim_mean: Annotated[Measure, _share("SSIM, mean")] = None
    share_30db: Annotated[Measure, _share("share of images at 30 dB or better")] = None
    psnr_baseline: Annotated[Measure, _decibels("PSNR of guessing the mean image")] = None
    mse_baseline: Annotated[Measure, Number("MSE of guessing the mean image", form=".1e")] = None
    ssim_baseline: Annotated[Measure, _share("SSIM of guessing the mean image")] = None
    r2: Annotated[Measure, Number("R2", form=".3f", highest_is_best=True)] = None
    range_mse: Annotated[Measure, Number("MSE in the columns' ranges", form=".1e")] = None
    """Of a table, per feature, each scaled to between 0 and 1: how Luo et al. 2021 count."""
    range_mse_baseline: Annotated[Measure, Number("MSE of guessing the columns' means", form=".1e")] = None
    range_mse_random: Annotated[Measure, Number("MSE of drawing from the columns' ranges", form=".1e")] = None
    share_exact: Annotated[Measure, _share("share of rows exact")] = None
    exact: Right | None = None
    """Rows exact; the guess is the most frequent row."""
    samples_lost: Count | None = None
    told: Count = 0
    """Samples that the adversary knew from elsewhere: they are not among those that are scored."""
    ordered: Count | None = None
    """Samples that no batch tells from another: which is which among them, the referee took from the truth."""
    over_rounds: Some[Step] | None = None
    label_accuracy: Annotated[Measure, _share("share of labels right")] = None
    labels: Right | None = None
    labels_named: bool | None = None
    """Whether the attack knows which class is which; if not, labels are scored under the naming that fits best."""
    label_auc: Annotated[Measure, _share("AUC of the labels' scores")] = None
    """With two classes, from scores: 0.5 is a guess; of scores that do not say which class is which the better side."""
    label_r2: Annotated[Measure, Number("R2 of the label", form=".3f", highest_is_best=True)] = None
    """Of a label that is a number; `labels` then counts those that are right to a thousandth of their range."""
    columns: Some[ColumnScore] = Field(default_factory=list)
    parties: Some[PartyScore] = Field(default_factory=list)
    representation_error: Annotated[Measure, Number("relative error of representations", form=".1e")] = None
    representation_baseline: Measure = None
    """The error of guessing the mean representation."""

    @property
    def gain(self) -> Annotated[float | None, _share("values right beyond a guess, mean over the columns")]:
        """Return what the attack gains over guessing, as a share of a table's values."""
        gains = [column.best.gain or 0.0 for column in self.columns]
        return sum(gains) / len(gains) if gains else None

    @property
    def known(self) -> Annotated[float | None, _share("known of what a guess leaves open")]:
        """Return how much of what a guess leaves open is known: of a table's values, of labels, or of images."""
        if self.columns:
            return sum(column.best.beyond for column in self.columns) / len(self.columns)
        if self.share_30db is not None:
            return self.share_30db
        return self.labels.beyond if self.labels else None

    @property
    def label_guess(self) -> Annotated[float | None, _share("share of labels that the best guess has right")]:
        """Return what a guess without gradients has right of the labels."""
        return self.labels.guess if self.labels else None

    @property
    def rounds_to_27db(self) -> Annotated[float | None, _rounds("rounds to 27 dB")]:
        """Return where the paper stops CAFE on CIFAR-10."""
        return self._reached(27.0)

    @property
    def rounds_to_30db(self) -> Annotated[float | None, _rounds("rounds to 30 dB")]:
        """Return where the paper stops CAFE on Linnaeus 5."""
        return self._reached(30.0)

    @property
    def rounds_to_38db(self) -> Annotated[float | None, _rounds("rounds to 38 dB")]:
        """Return where the paper stops CAFE on MNIST."""
        return self._reached(38.0)

    def _reached(self, decibels: float) -> float | None:
        """Return the first round whose snapshot has a mean PSNR of so much; None if none has."""
        steps = self.over_rounds or []
        return next((step.round for step in steps if step.psnr_mean is not None and step.psnr_mean >= decibels), None)

    @model_validator(mode="after")
    def _is_scored_whole(self) -> Self:
        if self.share_30db is not None and (self.psnr_mean is None or self.psnr_baseline is None):
            raise ValueError("it has a share_30db, and no psnr_mean or psnr_baseline")
        return self


class Shield(Part):
    """What one defence did; its own numbers are beside its name."""

    name: str


class Defence(Part):
    """What a worker's defences did."""

    worker: Word
    chain: Some[Shield]
    warning: Word = None


class RowsRead(Live):
    """How many rows a file has, and how many of them are left out, before rows are joined."""

    model_config = ConfigDict(frozen=True)

    source: str
    rows: Count
    unlabelled: Count = 0
    """Left out, as they have no label."""
    incomplete: Count = 0
    """Left out, as some other value is missing."""

    @property
    def in_words(self) -> str:
        """Say how many rows the file has, and which of them are left out."""
        lacking = {"without a label": self.unlabelled, "with missing values": self.incomplete}
        left_out = " and ".join(f"{count} {what}" for what, count in lacking.items() if count)
        return f"{self.source} has {self.rows} rows" + (f" ({left_out} left out)" if left_out else "")


class Tables(Part):
    """What became of the rows of files: `rows` of them are in all, and are what samples are taken from."""

    rows: Count
    files: Some[RowsRead]
    doubts: Some[str] = Field(default_factory=list)
    """A sentence on each thing that may be a mistake."""


class Summary(Part):
    """A run's summary."""

    config: RecordedConfig
    seed: Word = None
    versions: dict[str, Word] = Field(default_factory=dict)
    ended: Word = "complete"
    """Why the rounds ended."""
    workers: Word = None
    samples: Annotated[int, Field(strict=True, ge=0, le=SAMPLES)] | None
    shares: Some[Count] | None = None
    """How many samples each worker of a horizontal federation holds."""
    batch_size: Word = None
    rounds: Annotated[Count, Number("rounds", form=".0f")]
    seconds: Seconds
    rounds_per_second: Measure = None
    disturbances: Some[Disturbance] = Field(default_factory=list)
    withheld: dict[str, Word] = Field(default_factory=dict)
    """The first round in which a worker uploaded nothing, by its own decision."""
    coordinator_memory: Memory = Field(default_factory=Memory)
    bytes: Bytes
    train: Train
    attack: Attack
    defence: Some[Defence] = Field(default_factory=list)
    tables: Tables | None = None

    @property
    def scored(self) -> int:
        """Return how many samples the attack's scores are of: those that the adversary did not know already."""
        return (self.samples or 0) - self.attack.told

    @property
    def seconds_a_round(self) -> Annotated[float | None, _seconds("time a round", key="seconds.round")]:
        """Return the time of a round; runs that are too short for a rate give their mean."""
        if self.rounds_per_second:
            return 1 / self.rounds_per_second
        return (self.seconds.federation or 0.0) / self.rounds if self.rounds else None

    @property
    def bytes_a_round(self) -> Annotated[float | None, _bytes("on the wire a round", key="bytes.round")]:
        """Return what a round puts on the wire."""
        return (self.bytes.up + self.bytes.down + self.bytes.peer) / self.rounds if self.rounds else None

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return self.ended == "complete"

    @model_validator(mode="after")
    def _has_all_shares(self) -> Self:
        if self.shares and len(self.shares) != self.config.federation.workers:
            raise ValueError(f"it has shares for {len(self.shares)} of {self.config.federation.workers} workers")
        if self.samples is None and (self.attack.share_30db is not None or self.attack.share_exact is not None):
            raise ValueError("it has scores, and no samples")
        return self


def load_summary(out: Path) -> Summary:
    """Read the summary of a run's folder, which may come from another user."""
    try:
        found = json.loads(read_plain(out / _NAME, JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{out} is not a run's folder: {_NAME} cannot be read ({error})") from None
    missing = [key for key in NEEDED if not _has(found, key.split("."))]
    if missing:
        raise UserError(f"{out} is not a run's folder: {_NAME} has no {', '.join(missing)}")
    return checked(Summary, found, out / _NAME)


def save_summary(out: Path, summary: Summary) -> None:
    """Write the summary of a run's folder."""
    write_text(out / _NAME, json.dumps(as_json(summary), indent=1, allow_nan=False) + "\n")


def _has(found: Any, keys: list[str]) -> bool:
    return not keys or (isinstance(found, dict) and keys[0] in found and _has(found[keys[0]], keys[1:]))
