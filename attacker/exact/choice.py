"""What the attack will do, decided before the first round: the layer at each worker, the method, or why none works."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from torch import nn

from attacker.exact.steps12.completion import too_few_rounds
from attacker.least_squares import SKETCH, undetermined, written_otherwise
from attacker.steady import batchwise, by_chance, steady_input
from vfl.errors import UserError
from vfl.models import build_bottom
from vfl.models.layers import FullyConnected, fully_connected
from vfl.observation import Setting

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
        refusal = REFUSAL[wanted](case)
        if refusal:
            by = "" if wanted == "subspaces" else f" by {wanted.replace('_', ' ')}"
            raise UserError(f"attack exact{by}: {refusal}")
        return case.choice(wanted)
    refusals: dict[Method, str] = {}
    # Subspaces last where they need other layers than the first: of these less is known for certain
    needs_later = tuple(case.with_room) != case.first
    for method in sorted(REFUSAL, key=lambda method: needs_later and method == "subspaces"):
        refusal = REFUSAL[method](case)
        if refusal is None:
            return _with_help(case) if method == "subspaces" else case.choice(method)
        refusals[method] = refusal
    raise UserError(
        f"attack exact: {refusals['subspaces']}; least squares: {refusals['least_squares']}; "
        f"rank one: {refusals['rank_one']}"
    )


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
        case = cls(setting, single, bottoms, [_usable(setting, m, bottom) for m, bottom in enumerate(bottoms)], chance)
        if case.unbiased is not None and not setting.frozen:
            raise UserError(
                f"attack exact: the parameters move, and no fully connected layer of worker {case.unbiased} has a "
                f"bias, whose gradient tells the lengths; set training.lr to 0, or give a layer a bias"
            )
        return case

    def choice(self, method: Method) -> Choice:
        """Return what is done by a method that does not refuse."""
        if method != "subspaces":
            return Choice(method, self.first)
        return Choice(method, tuple(layer for layer in self.with_room if layer is not None), self.single)

    @property
    def first(self) -> tuple[FullyConnected, ...]:
        """Return each worker's first layer."""
        return tuple(own[0] for own in self.layers)

    @cached_property
    def with_room(self) -> list[FullyConnected | None]:
        """Return each worker's first layer whose gradients show the whole batch and keep two batches apart."""
        k = self.setting.batch_size
        longer = k if self.single else 2 * k

        def has_room(layer: FullyConnected) -> bool:
            return k <= min(layer.inputs, layer.outputs) and longer <= max(layer.inputs, layer.outputs)

        return [next(filter(has_room, own), None) for own in self.layers]

    @property
    def unbiased(self) -> int | None:
        """Return a worker whose layers have no bias; None if there is none."""
        return next((worker for worker, layer in enumerate(self.first) if not layer.bias), None)


def _subspaces_refusal(case: _Case) -> str | None:
    """Return why the batches' subspaces, which meet in the samples that they share, do not tell these apart."""
    setting, n, k = case.setting, case.setting.samples, case.setting.batch_size
    if not setting.frozen and any(layer and 2 * k > layer.inputs for layer in case.with_room):
        return "the parameters move, so the layer's inputs must hold two batches; use smaller batches"
    if None in case.with_room:
        worker = case.with_room.index(None)
        own = case.first[worker]
        return (
            f"batches of {k} do not fit worker {worker}'s fully connected layers (the first is {own.inputs} to "
            f"{own.outputs}; both must hold a batch, the larger two)"
        )
    if case.single:
        return None
    if k >= n > 1:
        return undetermined(setting)
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


def _least_squares_refusal(case: _Case) -> str | None:
    """Return why the rounds, linear equations for the samples' gradients, do not determine them."""
    if not case.setting.frozen:
        return "the parameters move, and with them every sample's gradient"
    if case.unbiased is not None:
        return f"no fully connected layer of worker {case.unbiased} has a bias, whose gradient it begins with"
    return "it needs the batch indices of many rounds" if case.single else undetermined(case.setting)


def _rank_one_refusal(case: _Case) -> str | None:
    """Return why rank one does not complete rounds that are too few for least squares."""
    if not case.setting.frozen or case.single or case.unbiased is not None:
        return "it needs frozen parameters, indices and a bias"
    return too_few_rounds(case.setting, case.first)


REFUSAL: dict[Method, Callable[[_Case], str | None]] = {
    "subspaces": _subspaces_refusal,
    "least_squares": _least_squares_refusal,
    "rank_one": _rank_one_refusal,
}
"""Why a method cannot tell the samples apart; None if it can."""


def _with_help(case: _Case) -> Choice:
    """Choose subspaces, with least squares beside them or a hint at it: should they leave samples open, it may not."""
    choice = case.choice("subspaces")
    if not case.setting.frozen or case.single or case.unbiased is not None:
        return choice
    too_few = _least_squares_refusal(case)
    if too_few:
        return replace(choice, hint=f"Least squares takes more rounds: {too_few}.")
    size = squares_bytes(case.setting, case.first)
    if size <= MOST_BYTES:
        return replace(choice, beside=case.choice("least_squares"))
    hint = (
        f"The rounds suffice for least squares, which would keep {size / 1e9:.1f} GB of them in memory: "
        f"set attack.method to least_squares."
    )
    return replace(choice, hint=hint)


def _despite_chance(case: _Case, wanted: Wanted) -> Choice:
    """Choose subspaces for models that differ each time, if what flows into the layers is the same."""
    refusal = _subspaces_refusal(case)
    if wanted in ("auto", "subspaces") and not refusal:
        choice = case.choice("subspaces")
        parts = zip(case.bottoms, case.setting.boxes, choice.layers, strict=True)
        if all(steady_input(bottom, layer.name, box.shape) for bottom, box, layer in parts):
            return replace(choice, remark=CHANCE)
    raise UserError("attack exact: " + "; ".join([*case.chance, *([refusal] if refusal else [])]))


def squares_bytes(setting: Setting, layers: Sequence[FullyConnected]) -> int:
    """Return what least squares keeps of a run's rounds, in float64."""
    numbers = sum(min(SKETCH, layer.outputs) * layer.inputs + layer.outputs for layer in layers)
    return 8 * numbers * min(setting.rounds, 2 * setting.samples)


def _moving(setting: Setting, single: bool) -> list[str]:
    """Return why samples cannot be followed through moving parameters."""
    if not setting.frozen and single:
        return ["the parameters move, and attack.epochs 1 does not follow them; leave it out, or set training.lr to 0"]
    if not setting.frozen and setting.schedule == "uniform":
        return [
            "the parameters move, and it follows them through epochs: set federation.schedule to epochs, "
            "or training.lr to 0"
        ]
    return []


def _usable(setting: Setting, worker: int, bottom: nn.Module) -> list[FullyConnected]:
    """Return a worker's layers whose gradients tell lengths too; without any, those that tell directions alone."""
    shape = setting.boxes[worker].shape
    layers = fully_connected(bottom, shape)
    if not layers:
        raise UserError(
            f"attack exact: the model of worker {worker} has no fully connected layer, whose gradient it reads (one "
            f"that takes a sample in several rows, as tokens, is none)" + written_otherwise(bottom, shape)
        )
    return [layer for layer in layers if layer.bias] or layers
