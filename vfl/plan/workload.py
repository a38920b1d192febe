"""A config's run in plain numbers, and the rounds that its attack needs: counted from shapes, nothing is trained."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attacker.exact import Exact
from attacker.exact.choice import Choice
from attacker.interface import attacks
from attacker.least_squares import LeastSquares
from attacker.rgap import RGap
from attacker.start import refusal_of, start_attack
from attacker.theory import Theory
from vfl.config import RunConfig
from vfl.datasets import Facts
from vfl.datasets.slices import boxes_of, check_facts, data_facts
from vfl.errors import UserError
from vfl.models.layers import evaluating, representation
from vfl.models.whole import WholeModel, first_model
from vfl.observation import BOTTOM, TOP, Setting, with_prefix
from vfl.partition import Shape
from vfl.plan.traffic import Traffic, count_traffic

FLOAT = 4


@dataclass(frozen=True)
class Layer:
    """The layer that is attacked at a worker, and the work of one sample on the way to it (forward, in flop)."""

    inputs: int
    outputs: int
    sees_data: bool
    flop: float


@dataclass(frozen=True)
class Workload:
    """A run in numbers. Bytes are bytes, flop are floating-point operations."""

    samples: int
    test_samples: int
    batch_size: int
    workers: int
    parties: int
    """The workers, and the coordinator's own label holder where it has one."""
    rounds: int
    sample_bytes: int
    slice_bytes: int
    """Of one sample at the worker that holds most of it."""
    model_bytes: int
    """All parties' parameters."""
    largest_model_bytes: int
    """Those of the worker with most of them."""
    outputs_bytes: int
    """The outputs of all layers of the largest bottom model for one sample: kept from forward to backward."""
    flop: float
    """One sample forward through all parties' models."""
    traffic: Traffic
    transcript_bytes: int
    waiting_bytes: int
    """Disk that rounds can take while they wait for the attack: that of all rounds, if workers need every core."""
    results_bytes: int
    """The results' files, while the largest of them is written a second time."""
    frozen: bool
    needs: "Needs"
    layers: tuple[Layer, ...]
    """Those that `exact` reads, one a worker; none for other attacks."""

    @property
    def kept_rounds(self) -> int:
        """Return how many rounds `exact` keeps: at most five of each sample, or two a sample for least squares."""
        if self.needs.method == "subspaces":
            return min(self.rounds, 5 * math.ceil(self.samples / self.batch_size))
        return min(self.rounds, 2 * self.samples)


def setting_of(config: RunConfig, facts: Facts) -> Setting:
    """Return what the coordinator of the run will know when all workers have joined."""
    check_facts(config, facts)
    shares = config.topology.even_shares(facts.samples, config.federation.batch_size)
    return Setting.of(config, boxes_of(facts, config), facts.classes, facts.samples, shares=shares)


def workload_of(config: RunConfig) -> Workload:
    """Count a config's run."""
    if config.topology.is_horizontal:
        raise UserError(
            "cafe plan: federation.kind horizontal is not estimated; plan the vertical federation of one worker"
        )
    facts = data_facts(config)
    setting = setting_of(config, facts)
    model = first_model(setting)
    shapes = [box.shape for box in setting.boxes]
    needs = needs_of(config, setting)
    uploads = _uploads(model, config)
    sizes = [sum(one.numel() * FLOAT for one in upload.values()) for upload in uploads]
    outputs = [_counted(bottom, shape) for bottom, shape in zip(model.bottoms, shapes, strict=True)]
    changes = 1 if setting.frozen else setting.rounds - setting.still_rounds
    seen_bytes = (setting.rounds + changes) * sum(sizes)
    layers = _layers(model, needs.choice, shapes) if needs.choice else ()
    return Workload(
        samples=facts.samples,
        test_samples=facts.test_samples,
        batch_size=setting.batch_size,
        workers=config.federation.workers,
        parties=config.topology.parties,
        rounds=setting.rounds,
        sample_bytes=FLOAT * math.prod(facts.sample_shape),
        slice_bytes=FLOAT * max(math.prod(shape) for shape in shapes),
        model_bytes=sum(sizes),
        largest_model_bytes=max(sizes),
        outputs_bytes=max(bytes_ for bytes_, _ in outputs),
        flop=sum(flop for _, flop in outputs),
        traffic=count_traffic(config, setting, test_samples=facts.test_samples, uploads=uploads, widths=model.widths),
        transcript_bytes=seen_bytes if config.records else 0,
        waiting_bytes=0 if config.records or needs.attack == "none" else seen_bytes,
        results_bytes=sum(sizes) + (_recovered_bytes(facts, layers) if needs.attack != "none" else 0),
        frozen=setting.frozen,
        needs=needs,
        layers=layers,
    )


def _recovered_bytes(facts: Facts, layers: tuple[Layer, ...]) -> int:
    """Return the size of recovered.npz, twice: the referee writes it anew beside the attack's, with the truth."""
    sample = FLOAT * math.prod(facts.sample_shape)
    represented = FLOAT * sum(layer.inputs for layer in layers)
    return facts.samples * (2 * (sample + represented) + sample)


def _uploads(model: WholeModel, config: RunConfig) -> list[dict[str, torch.Tensor]]:
    """Return what each worker uploads a round, under the names on the wire."""
    uploads = [with_prefix(BOTTOM, dict(bottom.named_parameters())) for bottom in model.bottoms]
    uploads += [{}] * (config.topology.parties - len(uploads))
    holder = config.topology.label_holder
    uploads[holder] = {**uploads[holder], **with_prefix(TOP, dict(model.top.named_parameters()))}
    return uploads


def _layers(model: WholeModel, choice: Choice, shapes: list[Shape]) -> tuple[Layer, ...]:
    found = []
    for bottom, layer, shape in zip(model.bottoms, choice.layers, shapes, strict=True):
        flop = 0.0
        if not layer.sees_data:
            flop = _flop(bottom, shape, partial(representation, bottom, layer.name))
        found.append(Layer(layer.inputs, layer.outputs, layer.sees_data, flop))
    return tuple(found)


def _counted(bottom: nn.Module, shape: Shape) -> tuple[int, float]:
    """Return the bytes of all layers' outputs for one sample, and the operations."""
    sizes: list[int] = []

    def note(_module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            sizes.append(output.numel() * output.element_size())

    leaves = [module for module in bottom.modules() if not list(module.children())]
    handles = [module.register_forward_hook(note) for module in leaves]
    try:
        flop = _flop(bottom, shape, bottom)
    finally:
        for handle in handles:
            handle.remove()
    return sum(sizes), flop


def _flop(bottom: nn.Module, shape: Shape, run: Callable[[torch.Tensor], object]) -> float:
    with torch.no_grad(), evaluating(bottom), FlopCounterMode(display=False) as counter:
        run(torch.full((1, *shape), 0.5))
    return float(counter.get_total_flops())


MOST_EPOCHS = 1 << 20

SOLVING = (Exact, LeastSquares, RGap, Theory)
"""Attacks that solve equations: once they have enough rounds, more do not help."""


@dataclass(frozen=True)
class Needs:
    """What an attack needs of a run."""

    attack: str
    rounds: int
    """The fewest rounds with which it starts; 0 where there is no attack, or no number of rounds is enough."""
    enough: bool = True
    """Whether those are all it needs: an attack that guesses step by step improves with more."""
    refusal: str | None = None
    """Why it would not start with the config's rounds, and which attacks would."""
    choice: Choice | None = None
    """`exact`: the method and the layers, with as many rounds as it needs."""

    @property
    def method(self) -> str | None:
        """Return how `exact` solves steps I and II."""
        return self.choice.method if self.choice else None


def needs_of(config: RunConfig, setting: Setting) -> Needs:
    """Find the fewest epochs with which the attack starts, if any number of them is enough."""
    section = config.attack
    if section.name == "none":
        return Needs("none", 0)
    setting = setting.seen_by(config)
    plugin, refusal = attacks.build(section), _refusal(config, setting)
    if (
        isinstance(plugin, Exact) and refusal is None
    ):  # the rounds that it needs for what it will do with the planned ones
        section = section.model_copy(update={"method": plugin.choice(setting).method})
    per_epoch = math.ceil(setting.samples / setting.batch_size)

    def enough(epochs: int) -> bool:
        return refusal_of(section, replace(setting, rounds=epochs * per_epoch)) is None

    epochs = 1
    while not enough(epochs):
        epochs *= 2
        if epochs > MOST_EPOCHS:
            return Needs(section.name, 0, enough=False, refusal=refusal)
    rounds = per_epoch * bisect_left(range(epochs), True, lo=epochs // 2 + 1, key=enough)
    if not isinstance(plugin, Exact):
        return Needs(section.name, rounds, isinstance(plugin, SOLVING), refusal)
    played = setting if refusal is None else replace(setting, rounds=rounds)
    return Needs(section.name, rounds, refusal=refusal, choice=plugin.choice(played))


def _refusal(config: RunConfig, setting: Setting) -> str | None:
    try:
        start_attack(config.attack, setting)
    except UserError as error:
        return str(error)
    return None
