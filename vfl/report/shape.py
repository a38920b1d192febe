"""What a summary.json and a sweep's results.json must look like to be shown: they may be anybody's."""

import math
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vfl.errors import UserError
from vfl.limits import CONFIG_DEPTH, SAMPLES, plain
from vfl.registry import explain

DEPTH = 2 * CONFIG_DEPTH
"""How deep a file may nest: it has a config in it, and a little around that."""

LARGEST = 1e100
"""No number of a run is so large; figures of larger ones cannot be drawn."""

T = TypeVar("T")
Number = Annotated[float, Field(strict=True, ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Field(strict=True, ge=0, le=1 << 53)]
Some = Annotated[list[T], Field(fail_fast=True)]
Word = str | int | float | bool | None


class Shape(BaseModel):
    """A part of a file; what is not named here is not shown, or shown as it is."""

    model_config = ConfigDict(extra="ignore")


class Named(Shape):
    """A plug-in's section of a config."""

    name: Word = None


class Federation(Shape):
    """Who takes part."""

    workers: Annotated[int, Field(strict=True, ge=1, le=1024)]
    label_holder_features: bool = True
    slices: Some[str] | None = None

    @model_validator(mode="after")
    def _has_holders(self) -> Self:
        holders = self.workers - (not self.label_holder_features)
        if not holders:
            raise ValueError("nobody holds features")
        if self.slices is not None and len(self.slices) != holders:
            raise ValueError(f"it has {len(self.slices)} slices for {holders} workers")
        return self


class Training(Shape):
    """How the parameters moved."""

    optimizer: str = ""
    lr: Number | None = None


class Config(Shape):
    """A run's config; it is that of the release that ran it."""

    data: Named | None = None
    model: Named | None = None
    attack: Named | None = None
    training: Training | None = None
    federation: Federation


class Evaluation(Shape):
    """The model after a round."""

    round: Count
    loss: Number | None = None
    accuracy: Number | None = None


class Train(Shape):
    """What training looked like."""

    losses: Some[Number | None] | None = None
    rates: Some[Number | None] | None = None
    evaluations: Some[Evaluation] | None = None
    loss_first: Number | None = None
    loss_last: Number | None = None
    test_accuracy: Number | None = None
    test_loss: Number | None = None


class Step(Shape):
    """How far the attack was after a round."""

    round: Count
    psnr_mean: Number | None = None
    r2: Number | None = None


class Column(Shape):
    """How much of a table's column leaked."""

    name: Word
    worker: Count | None = None
    r2: Number | None = None
    accuracy: Number | None = None


class Ledger(Shape):
    """What the recovery rests on."""

    sentence: str | None = None


class Queue(Shape):
    """How the attack kept up."""

    spilled: Count | None = None
    longest: Count | None = None


class Attack(Shape):
    """What the attack did, and how well."""

    name: Word
    used: Some[Word]
    ledger: Ledger | None = None
    notes: Some[Word] | None = None
    queue: Queue | None = None
    altered: Some[Number | None] | None = None
    over_rounds: Some[Step] | None = None
    columns: Some[Column] | None = None
    cells: Count | None = None
    certified: Count | None = None
    samples_lost: Count | None = None
    share_30db: Number | None = None
    share_exact: Number | None = None
    psnr_mean: Number | None = None
    psnr_median: Number | None = None
    psnr_min: Number | None = None
    psnr_baseline: Number | None = None
    ssim_mean: Number | None = None
    r2: Number | None = None
    representation_error: Number | None = None
    label_accuracy: Number | None = None

    @model_validator(mode="after")
    def _is_scored_whole(self) -> Self:
        if self.share_30db is not None and (self.psnr_mean is None or self.psnr_baseline is None):
            raise ValueError("it has a share_30db, and no psnr_mean or psnr_baseline")
        return self


class Disturbance(Shape):
    """Something that went wrong and was mended."""

    round: Word
    reasons: Some[Word]
    seconds: Number
    redone: Word


class Shield(Shape):
    """What one defence did."""

    name: str
    warning: Word = None


class Defence(Shape):
    """What a worker's defences did."""

    worker: Word
    chain: Some[Shield]
    warning: Word = None


class Memory(Shape):
    """The coordinator's memory."""

    last: Number | None = None


class Summary(Shape):
    """A run's summary."""

    config: Config
    samples: Annotated[int, Field(strict=True, ge=0, le=SAMPLES)] | None
    rounds: Count
    workers: Word = None
    batch_size: Word = None
    seed: Word = None
    ended: Word = None
    seconds: dict[str, Number | None]
    bytes: dict[str, Number | None]
    rounds_per_second: Number | None = None
    coordinator_memory: Memory | None = None
    train: Train
    attack: Attack
    shares: Some[Count] | None = None
    withheld: dict[str, Word] | None = None
    disturbances: Some[Disturbance] | None = None
    defence: Some[Defence] | None = None
    versions: dict[str, Word] | None = None

    @model_validator(mode="after")
    def _has_all_shares(self) -> Self:
        if self.shares and len(self.shares) != self.config.federation.workers:
            raise ValueError(f"it has shares for {len(self.shares)} of {self.config.federation.workers} workers")
        if self.samples is None and (self.attack.share_30db is not None or self.attack.share_exact is not None):
            raise ValueError("it has scores, and no samples")
        return self


class Entry(Shape):
    """A place of a sweep's table."""

    value: Number | None
    text: Word
    state: str
    cells: Some[str]


class Best(Shape):
    """The best of a line."""

    value: Number
    column: str


class Line(Shape):
    """A line of a sweep's table."""

    name: str
    entries: Some[Entry]
    best: Best | None
    price: Some[Word]


class Pivot(Shape):
    """A sweep's table."""

    number: str
    title: Word
    limits: tuple[Number, Number] | None
    row_axis: Word
    column_axis: Word
    columns: Some[Word]
    lines: Some[Line]
    price_titles: Some[Word]
    note: Word
    baseline: Number | None
    baseline_text: Word

    @model_validator(mode="after")
    def _has_limits(self) -> Self:
        if self.limits is not None and not self.limits[0] < self.limits[1]:
            raise ValueError("the first of its limits is not below the second")
        return self


class Cell(BaseModel):
    """A run of a sweep; its numbers are beside these keys."""

    model_config = ConfigDict(extra="allow")

    cell: str
    folder: str
    ended: Word
    error: Word


class Results(Shape):
    """A sweep's results."""

    sweep: Word
    planned: Word
    versions: dict[str, Word]
    rows: Some[Cell]
    pivot: Pivot

    @model_validator(mode="after")
    def _has_numbers(self) -> Self:
        for row in self.rows:
            value = (row.model_extra or {}).get(self.pivot.number, "nothing")
            if not isinstance(value, int | float | None):
                raise ValueError(f"the cell {row.cell} has {value!r} for {self.pivot.number}")
        return self


def check_shape(tree: Any, kind: type[BaseModel], file: Path) -> None:
    """End with a sentence where a file is not what the page is made of."""
    problem = _unusual(tree)
    try:
        if problem is None:
            kind.model_validate(tree)
    except ValidationError as error:
        problem = plain(explain(error))
    if problem is not None:
        raise UserError(f"{file} cannot be shown: {problem}; was it changed, or written by another version?")


def _unusual(tree: Any) -> str | None:
    """Return what no run writes, if there is any: nesting without end, numbers that are none."""
    level = [tree] if isinstance(tree, dict | list) else []
    for _ in range(DEPTH):
        level = [one for part in level for one in (part.values() if isinstance(part, dict) else part)]
        if any(isinstance(one, int | float) and not _usual(one) for one in level):
            return f"it has numbers above {LARGEST:g}"
        level = [one for one in level if isinstance(one, dict | list) and one]
        if not level:
            return None
    return f"it nests deeper than {DEPTH}"


def _usual(number: float) -> bool:
    return abs(number) <= LARGEST and not math.isnan(number)
