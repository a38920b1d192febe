"""The config's `training` section: the coordinator's optimiser, the learning rate over the rounds, an early stop."""

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vfl.optimisers import Optimiser, optimisers
from vfl.registry import PluginName, PluginSection, Section

LossName = Literal["cross_entropy", "binary", "squared"]


class RateSchedule(Section):
    """The learning rate over the rounds: 0 at first, then a warm-up, then as `kind` says."""

    kind: Literal["constant", "cosine", "step"] = "constant"
    frozen_epochs: int = Field(0, ge=0)
    warmup_epochs: int = Field(0, ge=0)
    every_epochs: int = Field(10, ge=1)
    factor: float = Field(0.1, gt=0, le=1)
    floor: float = Field(0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _consistent(self) -> "RateSchedule":
        for key, kind in (("every_epochs", "step"), ("factor", "step"), ("floor", "cosine")):
            if kind != self.kind and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} belongs to kind {kind}, and kind is {self.kind}")
        return self

    def after_warmup(self, done: int, planned: int, epoch: int) -> float:
        """Return the share of lr after so many of the planned rounds that follow the warm-up."""
        if self.kind == "cosine":
            return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done / planned)) / 2
        if self.kind == "step":
            return float(self.factor ** (done // (self.every_epochs * epoch)))
        return 1.0


class EarlyStop(Section):
    """Stop when the test loss has not become smaller, by more than `min_delta`, for `patience` evaluations."""

    patience: int = Field(5, ge=1)
    min_delta: float = Field(0.0, ge=0)

    def is_due(self, losses: Iterable[float]) -> bool:
        """Tell whether the last `patience` of these test losses did not improve on what was best before them."""
        best, since = math.inf, 0
        for loss in losses:
            since += 1
            if loss < best - self.min_delta:
                best, since = loss, 0
        return since >= self.patience


class Augment(Section):
    """What each worker does to its slices at random, anew in every round; flips and shifts are for images."""

    flip: bool = False
    shift: int = Field(0, ge=0, le=16)
    noise: float = Field(0.0, ge=0)

    @property
    def any(self) -> bool:
        """Whether anything is done."""
        return bool(self.flip or self.shift or self.noise)


class TrainingConfig(Section):
    """The optimiser at the coordinator; lr 0 freezes the parameters (the paper's static setting).

    Keys that are no fields here are options of the optimiser.
    """

    model_config = ConfigDict(extra="allow")

    loss: LossName = "cross_entropy"
    class_weights: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] | None = Field(None, min_length=2)
    optimizer: PluginName = "sgd"
    lr: float = Field(0.0, ge=0)
    accumulate: int = Field(1, ge=1)
    """So many rounds' gradients make one step, by their mean."""
    local_steps: int = Field(1, ge=1, le=100)
    local_lr: float | None = Field(None, gt=0)
    augment: Augment = Augment()
    clip_norm: float | None = Field(None, gt=0)
    schedule: RateSchedule = RateSchedule()
    evaluate_every: int | None = Field(None, ge=1)
    evaluate_first: bool = False
    """Whether the model is evaluated before the first round, too."""
    early_stop: EarlyStop | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingConfig":
        options = self.model_extra
        if options is not None and self.optimizer in optimisers.builtin_names():
            # Others are checked where they are used: a config may be anybody's, and reading it imports no code.
            options.update(optimisers.find(self.optimizer).model_validate(options).model_dump())
        if self.class_weights and self.loss == "squared":
            raise ValueError("class_weights: the loss squared is of numbers, which have no classes; leave it out")
        if self.class_weights and self.loss == "binary" and len(self.class_weights) != 2:
            raise ValueError(f"class_weights: binary is of two classes, and here are {len(self.class_weights)}")
        if (self.local_steps > 1) != (self.local_lr is not None):
            raise ValueError(
                "local_steps and local_lr go together: how many steps a worker takes, and how long they are"
            )
        if self.early_stop and self.evaluate_every is None:
            raise ValueError("early_stop needs evaluate_every, the number of rounds from one evaluation to the next")
        return self

    @model_serializer(mode="wrap")
    def _options_after_lr(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree: dict[str, Any] = dump(self)
        options = {key: tree.pop(key) for key in self.model_extra or {}}
        return {key: tree.pop(key) for key in ("optimizer", "lr")} | options | tree

    @property
    def frozen(self) -> bool:
        """Whether the parameters never change."""
        return self.lr == 0.0

    def build_optimiser(self) -> Optimiser:
        """Return the optimiser plug-in with its options checked."""
        return optimisers.build(PluginSection(name=self.optimizer, **(self.model_extra or {})))

    def learning_rate(self, number: int, rounds: int, epoch: int) -> float:
        """Return the rate of a round, counted from 1, of so many planned ones; an epoch has `epoch` rounds."""
        schedule = self.schedule
        frozen, warmup = schedule.frozen_epochs * epoch, schedule.warmup_epochs * epoch
        if number <= frozen:
            return 0.0
        if number <= frozen + warmup:
            return self.lr * (number - frozen) / warmup
        done = number - 1 - frozen - warmup
        return self.lr * schedule.after_warmup(done, rounds - frozen - warmup, epoch)
