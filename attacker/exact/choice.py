"""What the attack will do, decided before the first round: the layer at each worker, the method, or why none works."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from attacker.exact.steps12.completion import too_few_rounds
from attacker.least_squares import SKETCH, undetermined, written_otherwise
from attacker.steady import batchwise, by_chance, steady_input
from vfl.errors import UserError
from vfl.models import build_bottom
from vfl.models.layers import FullyConnected, fully_connected
from vfl.observation import Setting
from vfl.partition import Shape

Method = Literal["auto", "subspaces", "least_squares", "rank_one"]
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

    method: Literal["subspaces", "least_squares", "rank_one"]
    layers: tuple[FullyConnected, ...]
    beside: "Choice | None" = None
    """What the rounds are kept for too, should this method leave samples open."""
    hint: str | None = None
    """What to say if it leaves most of them open, and there is nothing beside it."""
    remark: str | None = None
    """What to say in any case."""


def choose(setting: Setting, method: Method, single: bool) -> Choice:
    """Decide, or raise UserError with everything that stands in the way."""
    bottoms = [build_bottom(setting.model, box.shape, setting.seed, m) for m, box in enumerate(setting.boxes)]
    chance = by_chance(setting)
    problems = [*_moving(setting, single), *batchwise(setting), *(() if setting.frozen else chance)]
    if problems:
        raise UserError("attack exact: " + "; ".join(problems))
    layers = [
        _usable(fully_connected(bottom, box.shape), bottom, box.shape, worker)
        for worker, (bottom, box) in enumerate(zip(bottoms, setting.boxes, strict=True))
    ]
    first = tuple(own[0] for own in layers)
    roomy = [next((layer for layer in own if room(layer, setting.batch_size, single)), None) for own in layers]
    no_subspaces = _no_subspaces(setting, layers, roomy, single)
    no_squares = "it needs the batch indices of many rounds" if single else undetermined(setting)
    without = [worker for worker, layer in enumerate(first) if not layer.bias]
    if without:
        no_squares = f"no fully connected layer of worker {without[0]} has a bias, whose gradient it begins with"
    if without and not setting.frozen:
        raise UserError(
            f"attack exact: the parameters move, and no fully connected layer of worker {without[0]} has a bias, whose "
            f"gradient tells the lengths; set training.lr to 0, or give a layer a bias"
        )
    if not setting.frozen:
        if method == "least_squares":
            raise UserError("attack exact by least squares: the parameters move, and with them every sample's gradient")
        no_squares = "the parameters move"
        if any(layer and 2 * setting.batch_size > layer.inputs for layer in roomy):
            no_subspaces = "the parameters move, so the layer's inputs must hold two batches; use smaller batches"
    if chance:
        taken = tuple(layer for layer in roomy if layer is not None)
        if method not in ("auto", "subspaces") or no_subspaces:
            raise UserError("attack exact: " + "; ".join([*chance, *([no_subspaces] if no_subspaces else [])]))
        return _despite(chance, bottoms, setting, taken)
    in_first = all(layer is own[0] for layer, own in zip(roomy, layers, strict=True))
    if method == "least_squares" or (method == "auto" and no_squares is None and (no_subspaces or not in_first)):
        if no_squares:
            raise UserError(f"attack exact by least squares: {no_squares}")
        return Choice("least_squares", first)
    completes = setting.frozen and not single and not without
    if method == "rank_one" or (method == "auto" and completes and (no_subspaces or not in_first)):
        too_few = too_few_rounds(setting, first) if completes else "it needs frozen parameters, indices and a bias"
        if too_few is None:
            return Choice("rank_one", first)
        if method == "rank_one":
            raise UserError(f"attack exact by rank one: {too_few}")
        no_squares = f"{no_squares}; completion by rank one: {too_few}"
    if no_subspaces:
        other = "" if method == "subspaces" or no_squares is None else f"; least squares: {no_squares}"
        raise UserError(f"attack exact: {no_subspaces}{other}")
    taken = tuple(layer for layer in roomy if layer is not None)
    if method != "auto" or not setting.frozen or single or without:
        return Choice("subspaces", taken)
    if no_squares:
        return Choice("subspaces", taken, hint=f"Least squares takes more rounds: {undetermined(setting)}.")
    size = squares_bytes(setting, first)
    if size <= MOST_BYTES:
        return Choice("subspaces", taken, Choice("least_squares", first))
    return Choice(
        "subspaces",
        taken,
        hint=f"The rounds suffice for least squares, which would keep {size / 1e9:.1f} GB of them in memory: "
        f"set attack.method to least_squares.",
    )


def squares_bytes(setting: Setting, layers: Sequence[FullyConnected]) -> int:
    """Return what least squares keeps of a run's rounds, in float64."""
    numbers = sum(min(SKETCH, layer.outputs) * layer.inputs + layer.outputs for layer in layers)
    return 8 * numbers * min(setting.rounds, 2 * setting.samples)


def room(layer: FullyConnected, batch_size: int, single: bool = False) -> bool:
    """Tell whether a layer's gradients show the whole batch and keep two batches apart."""
    fits = batch_size <= min(layer.inputs, layer.outputs)
    return fits and (single or 2 * batch_size <= max(layer.inputs, layer.outputs))


def _no_subspaces(
    setting: Setting, layers: list[list[FullyConnected]], roomy: list[FullyConnected | None], single: bool
) -> str | None:
    """Return why subspaces cannot tell the samples apart, None if they can."""
    n, k = setting.samples, setting.batch_size
    cramped = [worker for worker, layer in enumerate(roomy) if layer is None]
    if cramped:
        own = layers[cramped[0]][0]
        return (
            f"batches of {k} do not fit worker {cramped[0]}'s fully connected layers (the first is {own.inputs} to "
            f"{own.outputs}; both must hold a batch, the larger two)"
        )
    if single:
        return None
    if k >= n > 1:
        return f"every batch holds all {n} samples, so nothing tells them apart; choose federation.batch_size below {n}"
    per_epoch = math.ceil(n / k)
    moves = not setting.frozen and setting.still_rounds < 2 * per_epoch
    epochs = LEAST if moves else 2
    if setting.schedule != "uniform" and setting.rounds < epochs * per_epoch:
        why = " while the parameters move" if moves else ""
        less = "training.lr to 0" if moves else "attack.epochs to 1 for what a single gradient shows"
        return (
            f"{n} samples in batches of {k} need {epochs} epochs ({epochs * per_epoch} rounds){why}, the run has "
            f"{setting.rounds} rounds; set federation.epochs to {epochs}, or {less}"
        )
    return None


def _despite(
    chance: Sequence[str], bottoms: Sequence[nn.Module], setting: Setting, layers: tuple[FullyConnected, ...]
) -> Choice:
    """Choose subspaces for models that differ each time, if what flows into the layers is the same."""
    parts = zip(bottoms, setting.boxes, layers, strict=True)
    if not all(steady_input(bottom, layer.name, box.shape) for bottom, box, layer in parts):
        raise UserError("attack exact: " + "; ".join(chance))
    return Choice("subspaces", layers, remark=CHANCE)


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
