"""What the attack will do, decided before the first round: the layer at each worker, the method, or why none works."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import nn

from attacker.exact.all_rounds.needs import lack as all_rounds_lack
from attacker.exact.steps12.completion import too_few_rounds
from attacker.exact.workers.tails import affine_after, mixes_after
from attacker.least_squares import HIDDEN, SKETCH, undetermined, written_otherwise
from attacker.refusal import FROZEN, Lack, RefusalError
from attacker.steady import NORM, ROWS, batchwise, by_chance, mixes, steady_input, zeros_before
from vfl.maths.cone import enough_zeros
from vfl.models import build_bottom
from vfl.models.layers import FullyConnected, fully_connected
from vfl.models.whole import first_model
from vfl.observation import Setting
from vfl.partition import Shape

Method = Literal["subspaces", "one_gradient", "least_squares", "rank_one", "all_rounds"]
Wanted = Literal["auto"] | Method
LEAST = 3
"""Rounds that a sample must have been in while parameters move: two of them share other samples too."""
CHANCE = (
    "What comes after the attacked layer differs each time (dropout?): what flows into it does not, and is recovered, "
    "but certificates, and what is said of altered gradients, count the differences too"
)
ONCE = (
    "Workers change their slices at random in every round: each sample is recovered from the first round that has it, "
    "as it was changed for that round"
)
STEPS = (
    "Workers upload the mean of {} steps, in which their parameters move: a layer that sees the data shows them all "
    "the same, but certificates count what moved, and what lies behind other layers is blurred"
)
TOGETHER = (
    "Batch norm in training mode: what flows into the attacked layer depends on the batch, so the slices of a batch "
    "were looked for together, with the statistics that they have; nothing of this is certified"
)
MOST_BYTES = 1 << 29
"""What least squares may keep of the rounds beside subspaces, which may turn out to need no help."""


@dataclass(frozen=True)
class Choice:
    """The method, and the layer that is attacked at each worker."""

    method: Method
    layers: tuple[FullyConnected, ...]
    beside: "Choice | None" = None
    """What the rounds are kept for too, should this method leave samples open."""
    hint: str | None = None
    """What to say if it leaves most of them open, and there is nothing beside it."""
    remark: str | None = None
    """What to say in any case."""
    by_chance: bool = False
    """Whether what comes back to the layers differs each time."""
    jointly: bool = False
    """Whether what flows into the layers depends on the batch, so that its slices are looked for together."""


def choose(setting: Setting, wanted: Wanted) -> Choice:
    """Decide, or raise RefusalError with everything that stands in the way."""
    case = _Case.of(setting)
    if case.chance:
        return _despite_chance(case, wanted)
    if case.company:
        return _despite_company(case, wanted)
    choice = _steady(case, wanted)
    return choice if setting.local_steps == 1 else replace(choice, remark=STEPS.format(setting.local_steps))


def _steady(case: "_Case", wanted: Wanted) -> Choice:
    """Decide for models that make the same of a sample each time."""
    if wanted != "auto":
        refusal = REFUSAL[wanted](case)
        if refusal:
            raise RefusalError("exact", replace(refusal, by=wanted.replace("_", " ")))
        return case.choice(wanted)
    refusals: dict[Method, Lack] = {}
    # Subspaces late where parameters move, or where they need other layers than the first: less is certain then
    late = case.moves or tuple(case.with_room) != case.first
    last = {"subspaces": int(late), "all_rounds": 2}  # which takes longest
    for method in sorted(REFUSAL, key=lambda method: last.get(method, 0)):
        refusal = REFUSAL[method](case)
        if refusal is None:
            help_of = {"subspaces": _with_help, "one_gradient": _with_followers}.get(method)
            return help_of(case) if help_of else case.choice(method)
        refusals[method] = replace(refusal, by=method.replace("_", " "))
    raise RefusalError("exact", *(refusals[method] for method in REFUSAL))


@dataclass(frozen=True)
class _Case:
    """What the methods are judged by."""

    setting: Setting
    bottoms: Sequence[nn.Module]
    layers: Sequence[Sequence[FullyConnected]]
    """Of each worker those that can be attacked, at least one."""
    chance: Sequence[Lack]
    """What in the model makes a sample's gradient differ each time."""
    company: Sequence[Lack]
    """What makes it depend on its batch."""

    @classmethod
    def of(cls, setting: Setting) -> "_Case":
        """Look at the models; raise RefusalError with what stands in the way of every method."""
        bottoms = [build_bottom(setting.model, box.shape, setting.seed, m) for m, box in enumerate(setting.boxes)]
        chance = by_chance(setting)
        company = batchwise(setting)
        if company and (chance or not all(NORM in lack.found for lack in company)):
            raise RefusalError("exact", *company, *chance)
        usable = [_usable(setting, m, bottom) for m, bottom in enumerate(bottoms)]
        return cls(setting, bottoms, usable, chance, company)

    def choice(self, method: Method) -> Choice:
        """Return what is done by a method that does not refuse."""
        layers = {"subspaces": self.with_room, "one_gradient": self.with_zeros}.get(method, self.first)
        return Choice(method, tuple(layer for layer in layers if layer is not None))

    @property
    def first(self) -> tuple[FullyConnected, ...]:
        """Return each worker's first layer."""
        return tuple(own[0] for own in self.layers)

    @cached_property
    def with_room(self) -> list[FullyConnected | None]:
        """Return each worker's first layer whose gradients show the whole batch and keep two batches apart."""
        k = self.setting.batch_size

        def has_room(layer: FullyConnected) -> bool:
            return k <= min(layer.inputs, layer.outputs) and 2 * k <= max(layer.inputs, layer.outputs)

        return [next(filter(has_room, own), None) for own in self.layers]

    @cached_property
    def with_zeros(self) -> list[FullyConnected | None]:
        """Return each worker's first layer that takes what a ReLU leaves, and whose gradients show the whole batch."""
        return [
            next((layer for layer in own if self._has_zeros(bottom, layer, box.shape)), None)
            for own, bottom, box in zip(self.layers, self.bottoms, self.setting.boxes, strict=True)
        ]

    def _has_zeros(self, bottom: nn.Module, layer: FullyConnected, shape: Shape) -> bool:
        k = self.setting.batch_size
        if k > min(layer.inputs, layer.outputs) or not layer.bias or layer.sees_data:
            return False
        # what comes back through an affine rest has the same directions for all samples, as many as u has
        apart = k <= self.setting.loss.directions(self.setting.classes) or not affine_after(bottom, layer.name, shape)
        return apart and zeros_before(bottom, layer.name, shape) >= enough_zeros(k)

    @property
    def per_epoch(self) -> int:
        """Return how many rounds an epoch has."""
        return -(-self.setting.samples // self.setting.batch_size)

    @property
    def moves(self) -> bool:
        """Whether the parameters move before two epochs are over."""
        return not self.setting.frozen and self.setting.still_rounds < 2 * self.per_epoch

    @property
    def unbiased(self) -> int | None:
        """Return a worker whose layers have no bias; None if there is none."""
        return next((worker for worker, layer in enumerate(self.first) if not layer.bias), None)


def _subspaces_refusal(case: _Case) -> Lack | None:
    """Return what lacks for the batches' subspaces, which meet in the samples that they share, to tell these apart."""
    setting, n, k = case.setting, case.setting.samples, case.setting.batch_size
    if not setting.frozen and any(layer and 2 * k > layer.inputs for layer in case.with_room):
        narrow = next(m for m, layer in enumerate(case.with_room) if layer and 2 * k > layer.inputs)
        return Lack(f"layers with {2 * k} inputs, two batches, while the parameters move", f"worker {narrow} has none")
    if not setting.frozen and setting.schedule == "uniform":
        return Lack("epochs (or orthogonal) as federation.schedule while the parameters move", "it is uniform")
    if not setting.frozen and case.unbiased is not None:
        needs = "a fully connected layer with a bias, whose gradient tells the lengths, while the parameters move"
        return Lack(needs, f"worker {case.unbiased} has none")
    if None in case.with_room:
        worker = case.with_room.index(None)
        own = case.first[worker]
        return Lack(
            f"at each worker a fully connected layer that holds the batches ({k} inputs and {k} outputs or more, "
            f"{2 * k} of either)",
            f"worker {worker}'s first has {own.inputs} inputs and {own.outputs} outputs",
        )
    if k >= n > 1:
        return undetermined(setting)
    epochs = LEAST if case.moves else 2
    if setting.schedule == "uniform" or setting.rounds >= epochs * case.per_epoch:
        return None
    why = " while the parameters move" if case.moves else ""
    return Lack(
        f"{epochs} epochs ({epochs * case.per_epoch} rounds) for {n} samples in batches of {k}{why}",
        f"the run has {setting.rounds} rounds",
    )


def _one_gradient_refusal(case: _Case) -> Lack | None:
    """Return what lacks for a batch to show as the extreme rays of one gradient's cone."""
    if None not in case.with_zeros:
        return None
    k = case.setting.batch_size
    return Lack(
        f"at each worker a fully connected layer with a bias that takes what a ReLU leaves and holds a batch ({k} "
        f"outputs or more, and inputs of which the ReLU makes {enough_zeros(k):.0f} or more zero)",
        f"worker {case.with_zeros.index(None)} has none",
    )


def _least_squares_refusal(case: _Case) -> Lack | None:
    """Return what lacks for the rounds, linear equations for the samples' gradients, to determine them."""
    if not case.setting.frozen:
        return FROZEN
    if case.unbiased is not None:
        return Lack(
            "a fully connected layer with a bias, whose gradient it begins with", f"worker {case.unbiased} has none"
        )
    return undetermined(case.setting)


def _rank_one_refusal(case: _Case) -> Lack | None:
    """Return what lacks for rank one to complete rounds that are too few for least squares."""
    if not case.setting.frozen or case.unbiased is not None:
        return _least_squares_refusal(case)
    return HIDDEN if case.setting.loss.hides_divisor else too_few_rounds(case.setting, case.first)


def _all_rounds_refusal(case: _Case) -> Lack | None:
    """Return what lacks for all samples to be looked for in all rounds at once."""
    return all_rounds_lack(case.setting, case.bottoms, case.first)


REFUSAL: dict[Method, Callable[[_Case], Lack | None]] = {
    "subspaces": _subspaces_refusal,
    "least_squares": _least_squares_refusal,
    "one_gradient": _one_gradient_refusal,
    "rank_one": _rank_one_refusal,
    "all_rounds": _all_rounds_refusal,
}
"""What a method lacks to tell the samples apart; None if it can."""


def _with_help(case: _Case) -> Choice:
    """Choose subspaces, with least squares beside them or a hint at it: should they leave samples open, it may not."""
    choice = case.choice("subspaces")
    if not case.setting.frozen or case.unbiased is not None:
        return choice
    too_few = _least_squares_refusal(case)
    if too_few:
        return replace(choice, hint=f"Least squares was not tried: {too_few}.")
    size = squares_bytes(case.setting, case.first)
    if size <= MOST_BYTES:
        return replace(choice, beside=case.choice("least_squares"))
    hint = (
        f"The rounds suffice for least squares, which would keep {size / 1e9:.1f} GB of them in memory: "
        f"set attack.method to least_squares."
    )
    return replace(choice, hint=hint)


def _with_followers(case: _Case) -> Choice:
    """Choose one gradient each, with subspaces beside it where they could follow the samples through rounds."""
    choice = case.choice("one_gradient")
    return choice if _subspaces_refusal(case) else replace(choice, beside=case.choice("subspaces"))


def _despite_chance(case: _Case, wanted: Wanted) -> Choice:
    """Choose a method for models that differ each time, if what flows into the layers is the same."""
    lacks = list(case.chance)
    followed = all(layer.sees_data for layer in case.first)  # what flows into these does not move with parameters
    methods: tuple[Method, ...] = ("one_gradient",)
    if not case.setting.augmented and (followed or not case.moves):
        methods = ("subspaces", "one_gradient")
    for method in methods:
        layers = case.with_room if method == "subspaces" else case.with_zeros
        parts = zip(case.bottoms, case.setting.boxes, layers, strict=True)
        steady = (layer is None or steady_input(bottom, layer.name, box.shape) for bottom, box, layer in parts)
        if not case.setting.augmented and not all(steady):
            continue  # whatever else it lacks: chance comes before the layer
        refusal = REFUSAL[method](case)
        if refusal:
            lacks.append(replace(refusal, by=method.replace("_", " ")))
        elif wanted in ("auto", method):
            choice = case.choice(method)
            remark, differs = (ONCE, False) if case.setting.augmented else (CHANCE, True)
            return replace(choice, remark=remark, by_chance=differs)
    raise RefusalError("exact", *lacks)


def _despite_company(case: _Case, wanted: Wanted) -> Choice:
    """Choose one gradient where batch norm, or the like, comes before the attacked layers alone."""
    refusal = _one_gradient_refusal(case)
    lacks = [*case.company, *([replace(refusal, by="one gradient")] if refusal else ())]
    if refusal or wanted not in ("auto", "one_gradient"):
        raise RefusalError("exact", *lacks)
    choice, setting = case.choice("one_gradient"), case.setting
    top, widths = first_model(setting).top, first_model(setting).widths
    vectors = torch.rand(len(ROWS), sum(widths), generator=torch.Generator().manual_seed(0))
    parts = zip(case.bottoms, setting.boxes, choice.layers, strict=True)
    after = [worker for worker, (model, box, layer) in enumerate(parts) if mixes_after(model, layer.name, box.shape)]
    if after or mixes(top, lambda model, rows: model(vectors[rows])):
        where = f"after the layer {choice.layers[after[0]].name} of worker {after[0]}" if after else "in the top model"
        needs = "batch norm in training mode before the attacked layer alone, of whose inputs one gradient tells"
        raise RefusalError("exact", Lack(needs, f"there is some {where}"))
    return replace(choice, remark=TOGETHER, jointly=True)


def squares_bytes(setting: Setting, layers: Sequence[FullyConnected]) -> int:
    """Return what least squares keeps of a run's rounds, in float64."""
    numbers = sum(min(SKETCH, layer.outputs) * layer.inputs + layer.outputs for layer in layers)
    return 8 * numbers * min(setting.rounds, 2 * setting.samples)


def _usable(setting: Setting, worker: int, bottom: nn.Module) -> list[FullyConnected]:
    """Return a worker's layers whose gradients tell lengths too; without any, those that tell directions alone."""
    shape = setting.boxes[worker].shape
    layers = fully_connected(bottom, shape)
    if not layers:
        needs = "a fully connected layer that takes a sample in one row (not as tokens), whose gradient it reads"
        raise RefusalError("exact", Lack(needs, f"worker {worker}'s model has none{written_otherwise(bottom, shape)}"))
    return [layer for layer in layers if layer.bias] or layers
