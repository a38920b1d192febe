"""What the attack will do, decided before the first round: the layer at each worker, the method, or why none works."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

from torch import nn

from attacker.exact.steps12.completion import too_few_rounds
from attacker.least_squares import SKETCH, undetermined, written_otherwise
from attacker.steady import batchwise, by_chance, steady_input
from vfl.errors import UserError
from vfl.models import build_bottom
from vfl.models.layers import FullyConnected, fully_connected
from vfl.observation import Setting
from vfl.partition import Shape

Method = Literal["subspaces", "least_squares", "rank_one"]
Wanted = Literal["auto"] | Method
LEAST = 3
"""Rounds that a sample must have been in while parameters move: two of them share other samples too."""
CHANCE = (
    "What comes after the attacked layer differs each time (dropout?): what flows into it does not, and is recovered, "
    "but certificates, and what is said of altered gradients, count the differences too"
)
MOST_BYTES = 1 << 29
"""What least squares may keep of the rounds beside subspaces, which may turn out to need no help."""


@dataclass(frozen=True)
class Choice:
    """The method, and the layer that is attacked at each worker."""

    method: Method
    layers: tuple[FullyConnected, ...]
    single: bool = False
    """Whether each sample is taken from a single gradient, without the indices."""
    beside: "Choice | None" = None
    """What the rounds are kept for too, should this method leave samples open."""
    hint: str | None = None
    """What to say if it leaves most of them open, and there is nothing beside it."""
    remark: str | None = None
    """What to say in any case."""


def choose(setting: Setting, wanted: Wanted, single: bool) -> Choice:
    """Decide, or raise UserError with everything that stands in the way."""
    case = _Case.of(setting, single)
    if case.chance:
        return _despite_chance(case, wanted)
    if wanted != "auto":
        method = METHODS[wanted]
        refusal = method.refusal(case)
        if refusal:
            raise UserError(f"attack exact{method.by}: {refusal}")
        return method.choice(case)
    others = [METHODS["least_squares"], METHODS["rank_one"]]
    subspaces = METHODS["subspaces"]
    refusals: dict[str, str] = {}
    for method in [subspaces, *others] if case.first_has_room else [*others, subspaces]:
        refusal = method.refusal(case)
        if refusal is None:
            return _with_help(case) if method is subspaces else method.choice(case)
        refusals[method.by] = refusal
    reasons = [f"{other.by.removeprefix(' by ')}: {refusals[other.by]}" for other in others]
    raise UserError("; ".join([f"attack exact: {refusals[subspaces.by]}", *reasons]))


@dataclass(frozen=True)
class _Case:
    """What the methods are judged by."""

    setting: Setting
    single: bool
    bottoms: Sequence[nn.Module]
    layers: Sequence[Sequence[FullyConnected]]
    """Of each worker those that can be attacked, at least one."""
    chance: Sequence[str]
    """What in the model makes a sample's gradient differ each time."""

    @classmethod
    def of(cls, setting: Setting, single: bool) -> "_Case":
        """Look at the models; raise UserError with what stands in the way of every method."""
        bottoms = [build_bottom(setting.model, box.shape, setting.seed, m) for m, box in enumerate(setting.boxes)]
        chance = by_chance(setting)
        problems = [*_moving(setting, single), *batchwise(setting), *(() if setting.frozen else chance)]
        if problems:
            raise UserError("attack exact: " + "; ".join(problems))
        layers = [
            _usable(fully_connected(bottom, box.shape), bottom, box.shape, worker)
            for worker, (bottom, box) in enumerate(zip(bottoms, setting.boxes, strict=True))
        ]
        case = cls(setting, single, bottoms, layers, chance)
        if case.unbiased is not None and not setting.frozen:
            raise UserError(
                f"attack exact: the parameters move, and no fully connected layer of worker {case.unbiased} has a "
                f"bias, whose gradient tells the lengths; set training.lr to 0, or give a layer a bias"
            )
        return case

    @property
    def first(self) -> tuple[FullyConnected, ...]:
        """Return each worker's first layer."""
        return tuple(own[0] for own in self.layers)

    @cached_property
    def with_room(self) -> list[FullyConnected | None]:
        """Return each worker's first layer with room for two batches."""
        size = self.setting.batch_size
        return [next((layer for layer in own if room(layer, size, self.single)), None) for own in self.layers]

    @property
    def first_has_room(self) -> bool:
        """Whether that is the first layer of all at every worker: of later ones less is known for certain."""
        return all(layer is own[0] for layer, own in zip(self.with_room, self.layers, strict=True))

    @property
    def unbiased(self) -> int | None:
        """Return a worker whose layers have no bias; None if there is none."""
        return next((worker for worker, layer in enumerate(self.first) if not layer.bias), None)


class _Solver(Protocol):
    """A way to solve steps I and II."""

    by: str
    """As it is said in a sentence."""

    def refusal(self, case: _Case) -> str | None:
        """Return why it cannot tell the samples apart; None if it can."""

    def choice(self, case: _Case) -> Choice:
        """Return what is done with it."""


class _Subspaces:
    """Batches meet in the span of the samples that they share."""

    by = ""

    def refusal(self, case: _Case) -> str | None:
        setting = case.setting
        n, k = setting.samples, setting.batch_size
        if not setting.frozen and any(layer and 2 * k > layer.inputs for layer in case.with_room):
            return "the parameters move, so the layer's inputs must hold two batches; use smaller batches"
        cramped = next((worker for worker, layer in enumerate(case.with_room) if layer is None), None)
        if cramped is not None:
            own = case.first[cramped]
            return (
                f"batches of {k} do not fit worker {cramped}'s fully connected layers (the first is {own.inputs} to "
                f"{own.outputs}; both must hold a batch, the larger two)"
            )
        if case.single:
            return None
        if k >= n > 1:
            return (
                f"every batch holds all {n} samples, so nothing tells them apart; choose federation.batch_size "
                f"below {n}"
            )
        return self._too_short(setting)

    def choice(self, case: _Case) -> Choice:
        layers = tuple(layer for layer in case.with_room if layer is not None)
        return Choice("subspaces", layers, case.single)

    def _too_short(self, setting: Setting) -> str | None:
        n, k = setting.samples, setting.batch_size
        per_epoch = math.ceil(n / k)
        moves = not setting.frozen and setting.still_rounds < 2 * per_epoch
        epochs = LEAST if moves else 2
        if setting.schedule == "uniform" or setting.rounds >= epochs * per_epoch:
            return None
        why = " while the parameters move" if moves else ""
        less = "training.lr to 0" if moves else "attack.epochs to 1 for what a single gradient shows"
        return (
            f"{n} samples in batches of {k} need {epochs} epochs ({epochs * per_epoch} rounds){why}, the run has "
            f"{setting.rounds} rounds; set federation.epochs to {epochs}, or {less}"
        )


class _LeastSquares:
    """The rounds are linear equations for the samples' gradients."""

    by = " by least squares"

    def refusal(self, case: _Case) -> str | None:
        if not case.setting.frozen:
            return "the parameters move, and with them every sample's gradient"
        if case.unbiased is not None:
            return f"no fully connected layer of worker {case.unbiased} has a bias, whose gradient it begins with"
        return "it needs the batch indices of many rounds" if case.single else undetermined(case.setting)

    def choice(self, case: _Case) -> Choice:
        return Choice("least_squares", case.first)


class _RankOne:
    """Fewer rounds, completed by what is known of a sample's gradient."""

    by = " by rank one"

    def refusal(self, case: _Case) -> str | None:
        if not case.setting.frozen or case.single or case.unbiased is not None:
            return "it needs frozen parameters, indices and a bias"
        return too_few_rounds(case.setting, case.first)

    def choice(self, case: _Case) -> Choice:
        return Choice("rank_one", case.first)


METHODS: dict[Method, _Solver] = {
    "subspaces": _Subspaces(),
    "least_squares": _LeastSquares(),
    "rank_one": _RankOne(),
}


def _with_help(case: _Case) -> Choice:
    """Choose subspaces, with least squares beside them or a hint at it: should they leave samples open, it may not."""
    choice, setting, squares = METHODS["subspaces"].choice(case), case.setting, METHODS["least_squares"]
    if not setting.frozen or case.single or case.unbiased is not None:
        return choice
    too_few = squares.refusal(case)
    if too_few:
        return replace(choice, hint=f"Least squares takes more rounds: {too_few}.")
    size = squares_bytes(setting, case.first)
    if size <= MOST_BYTES:
        return replace(choice, beside=squares.choice(case))
    hint = (
        f"The rounds suffice for least squares, which would keep {size / 1e9:.1f} GB of them in memory: "
        f"set attack.method to least_squares."
    )
    return replace(choice, hint=hint)


def _despite_chance(case: _Case, wanted: Wanted) -> Choice:
    """Choose subspaces for models that differ each time, if what flows into the layers is the same."""
    refusal = METHODS["subspaces"].refusal(case)
    problems = [*case.chance, *([refusal] if refusal else [])]
    if wanted in ("auto", "subspaces") and not refusal:
        choice = METHODS["subspaces"].choice(case)
        parts = zip(case.bottoms, case.setting.boxes, choice.layers, strict=True)
        if all(steady_input(bottom, layer.name, box.shape) for bottom, box, layer in parts):
            return replace(choice, remark=CHANCE)
    raise UserError("attack exact: " + "; ".join(problems))


def squares_bytes(setting: Setting, layers: Sequence[FullyConnected]) -> int:
    """Return what least squares keeps of a run's rounds, in float64."""
    numbers = sum(min(SKETCH, layer.outputs) * layer.inputs + layer.outputs for layer in layers)
    return 8 * numbers * min(setting.rounds, 2 * setting.samples)


def room(layer: FullyConnected, batch_size: int, single: bool = False) -> bool:
    """Tell whether a layer's gradients show the whole batch and keep two batches apart."""
    fits = batch_size <= min(layer.inputs, layer.outputs)
    return fits and (single or 2 * batch_size <= max(layer.inputs, layer.outputs))


def _moving(setting: Setting, single: bool) -> list[str]:
    """Return why samples cannot be followed through moving parameters."""
    if setting.frozen:
        return []
    if single:
        return ["the parameters move, and attack.epochs 1 does not follow them; leave it out, or set training.lr to 0"]
    if setting.schedule == "uniform":
        return [
            "the parameters move, and it follows them through epochs: set federation.schedule to epochs, "
            "or training.lr to 0"
        ]
    return []


def _usable(layers: list[FullyConnected], bottom: nn.Module, shape: Shape, worker: int) -> list[FullyConnected]:
    """Return the layers whose gradients tell lengths too; without any, those that tell directions alone."""
    if not layers:
        raise UserError(
            f"attack exact: the model of worker {worker} has no fully connected layer, whose gradient it reads (one "
            f"that takes a sample in several rows, as tokens, is none)" + written_otherwise(bottom, shape)
        )
    return [layer for layer in layers if layer.bias] or layers
