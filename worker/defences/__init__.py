"""Defences: each turns a worker's gradients into what is uploaded. The coordinator does not know of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vfl.observation import Tensors
from vfl.registry import Plugin, PluginSection, Registry
from vfl.seeds import generator


@dataclass(frozen=True)
class Plan:
    """What a worker knows before the first round."""

    worker: int
    samples: int
    batch_size: int
    rounds: int
    schedule: str
    seed: int


@dataclass(frozen=True)
class Played:
    """The round that the gradients belong to, as this worker saw it."""

    number: int
    x: Tensor
    """The worker's own slice of the batch."""
    model: nn.Module
    """Its bottom model; the gradients' names are this model's with the prefix `bottom.`."""
    random: torch.Generator
    """Draws that depend on the run's seed, the worker, the round and the defence's place in the chain alone."""


class Shield(Protocol):
    """A defence at work: it may keep count from round to round."""

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Return what is uploaded in place of these gradients: the same names, shapes and dtypes, all finite."""

    def report(self) -> dict[str, Any]:
        """Return what there is to say at the end, as numbers and sentences that JSON can hold."""


class Defence(Plugin):
    """A defence plug-in: its fields are its options. Most only fill in `apply`."""

    def start(self, plan: Plan) -> Shield:  # noqa: ARG002 - for those that keep count
        """Begin a run, or raise UserError with a sentence that says what the plan lacks."""
        return _Stateless(self)

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Return what is uploaded in place of the true gradients."""
        raise NotImplementedError


defences: Registry[Defence] = Registry(
    "defence",
    Defence,
    "cafe.defences",
    ["worker.defences.none"],
)


@dataclass(frozen=True)
class _Stateless:
    defence: Defence

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Let the plug-in do it."""
        return self.defence.apply(gradients, played)

    def report(self) -> dict[str, Any]:
        """Nothing to say."""
        return {}


class Chain:
    """A worker's defences, one after the other."""

    def __init__(self, sections: Sequence[PluginSection], plan: Plan) -> None:
        self._plan = plan
        self._names = [section.name for section in sections]
        self._shields = [defences.build(section).start(plan) for section in sections]

    def apply(self, gradients: Tensors, number: int, x: Tensor, model: nn.Module) -> Tensors:
        """Return what is uploaded."""
        for place, shield in enumerate(self._shields):
            random = generator(self._plan.seed, f"defence {place} of worker {self._plan.worker}", number)
            gradients = shield.apply(gradients, Played(number, x, model, random))
        return gradients

    def report(self) -> list[dict[str, Any]]:
        """Return what each defence has to say at the end."""
        return [{"name": name, **shield.report()} for name, shield in zip(self._names, self._shields, strict=True)]
