"""Defences: each turns what a worker would send into what it sends: uploads, outputs, or answers to outputs."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vfl.config.places import PLACES, Place
from vfl.errors import UserError
from vfl.maths.tensors import all_finite, kind_of
from vfl.observation import Tensors
from vfl.registry import OURS, Plugin, PluginSection, Registry
from worker.defences import checks
from worker.defences.counting import Count, Counting, LostCountError, Withheld
from worker.keys import Draws, FixedSecret, Secret


@dataclass(frozen=True)
class Plan:
    """What a worker knows before the first round."""

    worker: int
    samples: int
    batch_size: int
    rounds: int
    schedule: str
    workers: int | None = None
    """In how many workers' uploads a sample's data shows, where known: all of them, or its own in a horizontal run."""
    secret: Secret = field(default_factory=Secret)
    """The worker's own: what its defences draw from. It is first read after the worker has joined."""
    common: Secret | None = None
    """The same at all workers, and unknown to the coordinator; None where they have none in common."""
    count: Path | None = None
    """The file in which what its defences count outlasts this process; in memory alone without."""


@dataclass(frozen=True)
class Played:
    """The round that the gradients belong to, as this worker saw it."""

    number: int
    rows: Tensor
    """Which of its samples the batch holds."""
    x: Tensor
    """The worker's own slice of the batch."""
    model: nn.Module
    """Its bottom model; the gradients' names are this model's with the prefix `bottom.`."""
    draws: Draws
    """Random numbers that depend on the worker's secret, the round and the defence's place in the chain alone."""

    @cached_property
    def random(self) -> torch.Generator:
        """Return torch's own generator for code that needs one; it can be broken with effort, `draws` cannot."""
        return torch.Generator().manual_seed(self.draws.integer(63))


@dataclass(frozen=True)
class Swapped:
    """The round of an output that is sent to the label holder, or of an answer to one, as its sender sees it."""

    number: int
    rows: Tensor
    """Whose outputs: a row of the tensor for each."""
    draws: Draws
    """Random numbers that depend on the sender's secret, the round, the receiver and the place in the chain alone."""
    labels: Tensor | None = None
    """The rows' classes, of an answer."""


class Shield(Protocol):
    """A defence at work: it may keep count from round to round."""

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Return what is uploaded in place of these gradients: the same names, shapes and dtypes, all finite."""

    def report(self) -> dict[str, Any]:
        """Return what there is to say at the end, as numbers and sentences that JSON can hold."""


@runtime_checkable
class RowPolicy(Protocol):
    """A shield that also decides which rows the coordinator's indices stand for; all workers must decide alike."""

    mean_over: int | None
    """The number that sums over a batch are divided by; None for the batch's own length."""

    def rows(self, number: int, named: Tensor) -> Tensor:
        """Return the rows of a round in which the coordinator named these."""


class WithheldError(Exception):
    """Raised by a shield that uploads nothing, in this round and all that follow; the sentence says why."""


class Defence(Plugin):
    """A defence plug-in: its fields are its options. Most only fill in `apply`."""

    keeps_count: ClassVar[bool] = False
    """Whether its promise needs a count of all rounds: a restarted worker without it uploads no more."""
    needs_common: ClassVar[bool] = False
    """Whether all workers must draw alike, from the plan's `common` secret."""
    places: ClassVar[frozenset[Place]] = frozenset({"uploads"})
    """Where it can act: on uploads by `apply`, on outputs and answers by `exchange`, on what is learned by `labels`."""

    def schedule(self, planned: str) -> str:
        """Return how batches are really drawn, for those that play other rows than the coordinator names."""
        return planned

    def start(self, plan: Plan) -> Shield:  # noqa: ARG002 - for those that keep count
        """Begin a run, or raise UserError with a sentence that says what the plan lacks."""
        return self

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Return what is uploaded in place of the true gradients."""
        raise NotImplementedError

    def exchange(self, tensor: Tensor, swapped: Swapped) -> Tensor:
        """Return what is sent in place of an output or an answer: the same shape and dtype, finite."""
        raise NotImplementedError

    def penalty(self, x: Tensor, output: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return what the loss of the worker's bottom model gets besides, given a batch; of defences of outputs."""
        return None

    def check(self, classes: int) -> None:
        """Raise UserError if it is not for so many classes, before the first round; the label holder knows them."""

    def labels(self, labels: Tensor, classes: int, draws: Draws) -> Tensor:  # noqa: ARG002
        """Return what the label holder learns in place of its labels, for the whole run."""
        return labels

    def report(self) -> dict[str, Any]:
        """Return what there is to say at the end."""
        return {}


_ANSWERS = tuple(f"answers.{name}" for name in ("marvell", "max_norm", "discretise", "random_labels"))
_OUTPUTS = ("outputs.no_peek", "outputs.bottleneck")
_OURS = (
    "indices",
    "breaker",
    "fake_gradients",
    "dp",
    "noise",
    "prune",
    "quantize",
    "clip",
    "soteria",
    *_ANSWERS,
    *_OUTPUTS,
)
"""The modules of the defences that come with this package, besides `none`."""
defences = Registry("defence", Defence, "cafe.defences", [f"worker.defences.{name}" for name in _OURS])


@defences.register("none")
class NoDefence(Defence):
    """Sends what is true."""

    places: ClassVar[frozenset[Place]] = frozenset(PLACES)

    def apply(self, gradients: Tensors, played: Played) -> Tensors:  # noqa: ARG002
        """Return the gradients as they are."""
        return gradients

    def exchange(self, tensor: Tensor, swapped: Swapped) -> Tensor:  # noqa: ARG002
        """Return the output or answer as it is."""
        return tensor


def built_for(place: Place, section: PluginSection) -> Defence:
    """Return the defence that a config names for a place, or say where it can act."""
    built = defences.build(section)
    if place not in built.places:
        able = " and ".join(one for one in PLACES if one in built.places)
        raise UserError(f"defence.{place}: {section.name} acts on {able}, not on {place}")
    return built


class Chain:
    """A worker's defences of its uploads, one after the other."""

    def __init__(self, sections: Sequence[PluginSection], plan: Plan) -> None:
        built = [built_for("uploads", section) for section in sections]
        self._names, self._built = [section.name for section in sections], built
        self._foreign = [type(one).__module__.partition(".")[0] not in OURS for one in built]
        for place, defence in enumerate(built):
            with self._guard(place, "schedule"):
                schedule = checks.fitting_schedule(self._names[place], defence.schedule(plan.schedule))
                plan = replace(plan, schedule=schedule)
        self._plan = plan
        self._shields: list[Shield] = []
        self._policies: list[tuple[int, RowPolicy]] = []
        for place, defence in enumerate(built):
            with self._guard(place, "start"):
                shield = defence.start(plan)
            self._shields.append(shield)
            with self._guard(place, "mean_over"):  # up to Python 3.11 isinstance asks for its value
                if isinstance(shield, RowPolicy):
                    self._policies.append((place, shield))
        self._count = self._counting(sections) if any(one.keeps_count for one in built) else None
        self._withheld: Withheld | None = None

    def start_first(self) -> None:
        """Take note that no other process was this worker before: nothing has been counted yet."""
        if self._count is not None:
            self._count.begin()

    def start_late(self) -> None:
        """Take note that another process was this worker before: its secret goes on, and what it counted."""
        self._plan.secret.go_on()
        if self._count is None:
            return
        try:
            self._withheld = self._count.go_on()
        except LostCountError as lost:
            names = " and ".join(name for name, one in zip(self._names, self._built, strict=True) if one.keeps_count)
            self._withheld = Withheld(0, f"it was restarted, and with it went what its {names} had counted ({lost})")

    @property
    def mean_over(self) -> int | None:
        """Return what sums over a batch are divided by; None for the batch's own length."""
        for place, policy in self._policies:
            with self._guard(place, "mean_over"):
                over = checks.fitting_mean(self._names[place], policy.mean_over)
            if over is not None:
                return over
        return None

    def rows(self, number: int, named: Tensor) -> Tensor:
        """Return which rows a round is played on."""
        for place, policy in self._policies:
            with self._guard(place, "rows"):
                named = checks.fitting_rows(self._names[place], policy.rows(number, named), self._plan.samples)
        return named

    def apply(self, gradients: Tensors, number: int, *, rows: Tensor, x: Tensor, model: nn.Module) -> Tensors:
        """Return what is uploaded, or raise WithheldError for nothing; what was withheld once stays so."""
        if self._withheld and number >= self._withheld.number:
            raise WithheldError(self._withheld.reason)
        try:
            if self._count is not None and (problem := self._count.problem(number, rows, gradients)):
                raise WithheldError(problem)
            for place, shield in enumerate(self._shields):
                draws = self._plan.secret.draws(f"defence {place} of worker {self._plan.worker}", number)
                # first: a plug-in may change the mapping that it is given
                kinds = {name: kind_of(tensor) for name, tensor in gradients.items()}
                finite = self._foreign[place] and all_finite(*gradients.values())
                with self._guard(place, "apply", WithheldError):
                    uploaded = shield.apply(gradients, Played(number, rows, x, model, draws))
                    gradients = checks.fitting_upload(self._names[place], uploaded, kinds, finite)
        except WithheldError as withheld:
            self._withheld = Withheld(number, str(withheld))
            if self._count is not None:
                self._count.keep(number, str(withheld))
            raise
        if self._count is not None:
            self._count.keep(number)
        return gradients

    def report(self) -> dict[str, Any]:
        """Return what there is to say at the end, of each defence and of the whole."""
        chain = []
        for place, (name, shield) in enumerate(zip(self._names, self._shields, strict=True)):
            with self._guard(place, "report"):
                chain.append({"name": name, **checks.fitting_report(name, shield.report())})
        withheld = {"round": self._withheld.number, "reason": self._withheld.reason} if self._withheld else None
        report = {"worker": self._plan.worker, "chain": chain, "withheld_from": withheld}
        fixed = any(isinstance(one, FixedSecret) and one.used for one in (self._plan.secret, self._plan.common))
        return report | {"warning": FixedSecret.WARNING} if fixed else report

    def _counting(self, sections: Sequence[PluginSection]) -> Count:
        """Return the count of those that keep one; it is kept in a file only where all of them can go on with it."""
        counting = {at: shield for at, shield in enumerate(self._shields) if self._built[at].keeps_count}
        able = {at: shield for at, shield in counting.items() if isinstance(shield, Counting)}
        plan = self._plan
        rests_on = [section.model_dump(mode="json") for section in sections]
        numbers = (plan.worker, plan.samples, plan.batch_size, plan.rounds, plan.schedule)
        return Count(plan.count if len(able) == len(counting) else None, json.dumps([numbers, rests_on]), able)

    def _guard(self, place: int, doing: str, *passing: type[Exception]) -> AbstractContextManager[None]:
        return defences.guard(self._names[place], self._built[place], doing, *passing)
