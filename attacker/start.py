"""Starts the attack that a config names: its errors bear its name, and what it hands over must fit the setting."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from attacker.horizontal import Horizontal
from attacker.interface import (
    ActiveAttack,
    Attack,
    AttackPlugin,
    Lack,
    Progress,
    Proposal,
    RefusalError,
    Resumable,
    attacks,
    share,
)
from attacker.seating import Seating
from vfl.cluster import leave
from vfl.errors import CafeError, RunFailedError, UserError
from vfl.maths.tensors import described
from vfl.models.whole import first_model
from vfl.observation import AnyObservation, Setting
from vfl.recovery import Recovery
from vfl.registry import PluginSection

_KEPT = (torch.float16, torch.float32, torch.float64)
"""The floating-point numbers that a file can hold as they are."""
_SHOWN = "rounds shown"
"""The name of a tensor that no attack's state has."""
_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


WORDS = {"indices": "batches' indices", "parameters": "parameters in force", "batch_size": "sizes of the batches"}


def start_attack(section: PluginSection, setting: Setting) -> Attack:
    """Start an attack; the error of one that cannot run on this setting names those that can."""
    try:
        return _start(section, setting)
    except RefusalError as refusal:
        raise UserError(f"{refusal}. {_instead(section, setting)}") from None


def refusal_of(section: PluginSection, setting: Setting) -> CafeError | None:
    """Return why an attack would not start (a plug-in of another package may also fail in it); None if it would."""
    try:
        _start(section, setting)
    except CafeError as error:
        return error
    return None


def refusals(setting: Setting, *own: PluginSection) -> dict[str, CafeError | None]:
    """Return of each attack that a config can name why it would not start; with default options, but for `own`."""
    sections = {name: PluginSection(name=name) for name in attacks.names()} | {one.name: one for one in own}
    return {name: refusal_of(section, setting) for name, section in sections.items() if name != "none"}


def _instead(section: PluginSection, setting: Setting) -> str:
    """Say what a refusal does not mean, and which attacks can run where this one cannot."""
    able = [
        f"{name} with its default options" if name == section.name else name
        for name, refusal in refusals(setting).items()
        if refusal is None
    ]
    if not able:
        return "That says nothing about safety; no other attack can run here with its default options, either"
    return f"That says nothing about safety; these attacks can run here (attack.name): {', '.join(able)}"


def _start(section: PluginSection, setting: Setting) -> Attack:
    """Start an attack from the seats that it needs; in a horizontal federation one on each worker."""
    plugin = attacks.build(section)
    missing = sorted(setting.unknown & plugin.needs_known)
    if missing:
        said = "whoever recorded the rounds says that the server does not know them"
        raise RefusalError(section.name, *(Lack(f"the {WORDS[one]}", said) for one in missing))
    seating = Seating.choose(section.name, plugin.seats, setting.seats, active=plugin.active)

    def start(seen: Setting) -> Attack:
        seen = seating.knows(seen)
        if lack := _strange_loss(plugin, seen):
            raise RefusalError(section.name, lack)
        with attacks.guard(section.name, plugin, "start"):
            return CheckedAttack(section.name, plugin, plugin.start(seen), seen, seating)

    return Horizontal(setting, start) if setting.topology.is_horizontal else start(setting)


def _strange_loss(plugin: AttackPlugin, setting: Setting) -> Lack | None:
    """Return what an attack lacks that does not know what comes back from a run's loss."""
    if setting.loss.name not in plugin.losses:
        known = " or ".join(sorted(plugin.losses))
        return Lack(f"the loss {known}, whose gradients it reads", f"training.loss is {setting.loss.name}")
    if setting.loss.weights and not plugin.weighs:
        return Lack("classes that count alike", "training.class_weights gives them weights")
    return None


@dataclass(frozen=True)
class CheckedAttack:
    """A plug-in's attack: an error names the plug-in, also if what it hands over does not fit the setting."""

    name: str
    plugin: AttackPlugin
    attack: Attack
    setting: Setting
    seating: Seating = Seating((0,))  # noqa: RUF009 - it is frozen
    shown: set[int] = field(default_factory=set)
    """The rounds so far."""

    def observe(self, observation: AnyObservation) -> None:
        """Take in one round as it comes."""
        self.shown.add(observation.round)
        with attacks.guard(self.name, self.plugin, "observe"):
            self.attack.observe(self.seating.sees(observation))

    @property
    def propose(self) -> "Callable[[int], Proposal | None] | None":
        """What a malicious party asks the attack in each round, if it is an active one."""
        return self._propose if isinstance(self.attack, ActiveAttack) else None

    def _propose(self, number: int) -> "Proposal | None":
        assert isinstance(self.attack, ActiveAttack)
        with attacks.guard(self.name, self.plugin, "propose"):
            return self.attack.propose(number)

    @property
    def beginning(self) -> Callable[[], Recovery] | None:
        """What the attack guesses before the first round, if it says so."""
        begins = getattr(self.attack, "beginning", None)
        return None if begins is None else lambda: self.check(begins())

    @property
    def resumable(self) -> bool:
        """Whether the plug-in's attack can go on from a state."""
        return isinstance(self.attack, Resumable)

    def state(self) -> dict[str, Tensor]:
        """Return the attack's state, and which rounds it was shown."""
        assert isinstance(self.attack, Resumable)
        with attacks.guard(self.name, self.plugin, "state"):
            return {**self.attack.state(), _SHOWN: torch.tensor(sorted(self.shown), dtype=torch.int64)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Let the attack go on from a state."""
        assert isinstance(self.attack, Resumable)
        self.shown.update(state[_SHOWN].tolist())
        with attacks.guard(self.name, self.plugin, "restore"):
            self.attack.restore({name: tensor for name, tensor in state.items() if name != _SHOWN})

    def recover(self, progress: Progress) -> Recovery:
        """Return the best estimate from the rounds so far."""
        try:
            with attacks.guard(self.name, self.plugin, "recover"):
                return self.check(self.attack.recover(_CheckedProgress(progress, self.check)))
        finally:
            leave()

    def check(self, recovery: object) -> Recovery:
        """Return an estimate, its tensors detached and on the CPU, or say what about it is wrong."""
        try:
            return _fitting(recovery, self.setting, self.shown)
        except _MisfitError as misfit:
            raise RunFailedError(f"the attack plug-in {self.name} failed in recover: {misfit}") from None


@dataclass(frozen=True)
class _CheckedProgress:
    """The progress of an attack whose unfinished estimates are checked, too."""

    progress: Progress
    check: Callable[[object], Recovery]

    def __call__(self, step: str, done: int, total: int) -> None:
        self.progress(step, done, total)

    def estimate(self, make: Callable[[], Recovery]) -> None:
        """Offer an estimate to the caller of `recover`."""
        share(self.progress, lambda: self.check(make()))


class _MisfitError(Exception):
    """Says what was expected, and what there is."""


def _fitting(recovery: object, setting: Setting, shown: Collection[int]) -> Recovery:
    if not isinstance(recovery, Recovery):
        raise _MisfitError(f"it must return a Recovery, not {described(recovery)}")
    samples, workers = setting.samples, len(setting.boxes)
    slices = _each("slices", recovery.slices, [(samples, *box.shape) for box in setting.boxes])
    representations = _each("representations", recovery.representations, [(samples, None)] * workers)
    layers = None if recovery.layers is None else _words("layers", recovery.layers, workers)
    if layers is not None:
        _check_layers(layers, representations, setting)
    certificates = recovery.certificates
    return replace(
        recovery,
        slices=slices,
        representations=representations,
        layers=layers,
        labels=None
        if recovery.labels is None
        else _floating("labels", recovery.labels, (samples,))
        if setting.loss.of_number
        else _labels(recovery.labels, samples, setting.classes),
        label_scores=None
        if recovery.label_scores is None
        else _floating("label_scores", recovery.label_scores, (samples,)),
        told=_members("told", recovery.told, samples) if recovery.told else (),
        cells=tuple(_members("each of the cells", cell, samples) for cell in _several("cells", recovery.cells)),
        certificates=None if certificates is None else _floating("certificates", certificates, (samples, workers)),
        used=tuple(one for one in _words("used", recovery.used) if one not in setting.unknown),
        rounds=None if recovery.rounds is None else _rounds(recovery.rounds, shown),
        altered=None if recovery.altered is None else _shares(recovery.altered, workers),
        notes=_words("notes", recovery.notes),
    )


def _check_layers(layers: Sequence[str], representations: Sequence[Tensor] | None, setting: Setting) -> None:
    """Refuse layers that the model does not have, or whose inputs have another width than is said of them."""
    if representations is None:
        raise _MisfitError("layers must come with representations, which are what flows into them")
    for worker, bottom in enumerate(first_model(setting).bottoms):
        layer = dict(bottom.named_modules()).get(layers[worker])
        if layer is None:
            raise _MisfitError(f"layers[{worker}] must be the name of a layer of the model, not {layers[worker]!r}")
        if isinstance(layer, nn.Linear) and representations[worker].shape[1] != layer.in_features:
            shape = (setting.samples, layer.in_features)
            wanted = f"the shape {shape}, as wide as the input of {layers[worker]}"
            raise _MisfitError(
                f"representations[{worker}] must have {wanted}, not {described(representations[worker])}"
            )


def _each(what: str, parts: Any, shapes: Sequence[tuple[int | None, ...]]) -> tuple[Tensor, ...] | None:
    """Return a tensor for each worker; None stays None."""
    if parts is None:
        return None
    if len(_several(what, parts)) != len(shapes):
        raise _MisfitError(f"{what} must have a tensor for each of the {len(shapes)} workers, not {len(parts)}")
    return tuple(
        _floating(f"{what}[{worker}]", part, shape)
        for worker, (part, shape) in enumerate(zip(parts, shapes, strict=True))
    )


def _floating(what: str, tensor: Any, shape: tuple[int | None, ...]) -> Tensor:
    """Return a dense tensor of floating-point numbers; None in the shape is any length."""
    dense = isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.is_floating_point()
    if not dense or not _has_shape(tensor, shape):
        wanted = str(tuple("any" if length is None else length for length in shape)).replace("'", "")
        raise _MisfitError(f"{what} must be a dense floating-point tensor of shape {wanted}, not {described(tensor)}")
    plain: Tensor = tensor.detach().cpu()
    return plain if plain.dtype in _KEPT else plain.float()


def _has_shape(tensor: Tensor, shape: tuple[int | None, ...]) -> bool:
    return tensor.dim() == len(shape) and all(b in (None, a) for a, b in zip(tensor.shape, shape, strict=True))


def _labels(labels: Any, samples: int, classes: int) -> Tensor:
    whole = isinstance(labels, Tensor) and labels.layout == torch.strided and labels.dtype in _WHOLE
    if not whole or labels.shape != (samples,):
        wanted = f"a tensor of whole numbers of shape ({samples},)"
        raise _MisfitError(f"labels must be {wanted}, -1 where unknown, not {described(labels)}")
    plain: Tensor = labels.cpu().long()
    wrong = plain[(plain < -1) | (plain >= classes)]
    if len(wrong):
        raise _MisfitError(f"labels must be from 0 to {classes - 1}, or -1 where unknown, not {int(wrong[0])}")
    return plain


def _members(what: str, some: Any, samples: int) -> tuple[int, ...]:
    members = _integers(what, some)
    if not members or min(members) < 0 or max(members) >= samples:
        raise _MisfitError(f"{what} must have samples from 0 to {samples - 1}, not {members}")
    return members


def _rounds(rounds: Any, shown: Collection[int]) -> tuple[int, ...]:
    numbers = _integers("rounds", rounds)
    unseen = next((number for number in numbers if number not in shown), None)
    if unseen is not None:
        raise _MisfitError(f"rounds must be of those that it was shown, and round {unseen} was not")
    return tuple(sorted(set(numbers)))


def _integers(what: str, numbers: Any) -> tuple[int, ...]:
    try:
        return tuple(index(number) for number in numbers)
    except TypeError:
        raise _MisfitError(f"{what} must be a tuple of integers, not {described(numbers)}") from None


def _shares(shares: Any, workers: int) -> tuple[float, ...]:
    try:
        numbers = tuple(float(share) for share in _several("altered", shares))
    except (TypeError, ValueError):
        raise _MisfitError(f"altered must be a tuple of numbers, not {described(shares)}") from None
    if len(numbers) != workers:
        raise _MisfitError(f"altered must have a number for each of the {workers} workers, not {len(numbers)}")
    return numbers


def _words(what: str, words: Any, count: int | None = None) -> tuple[str, ...]:
    other = next((word for word in _several(what, words) if not isinstance(word, str)), None)
    if other is not None:
        raise _MisfitError(f"{what} must be a tuple of strings, and one of them is {described(other)}")
    if count not in (None, len(words)):
        raise _MisfitError(f"{what} must have a string for each of the {count} workers, not {len(words)}")
    return tuple(words)


def _several(what: str, things: Any) -> Sequence[Any]:
    if not isinstance(things, tuple | list):
        raise _MisfitError(f"{what} must be a tuple, not {described(things)}")
    return things
