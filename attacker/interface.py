"""What an attack is: it observes rounds, then recovers; it never sees more than `Observation` and `Setting`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from vfl.observation import Observation, Setting
from vfl.registry import Plugin, Registry

Progress = Callable[[str, int, int], None]
"""Called as progress("step III", done, total); may raise to interrupt the attack."""


@dataclass(frozen=True)
class Recovery:
    """The best estimate of an attack. What it could not recover is None; a single lost sample is a row of NaN."""

    slices: tuple[Tensor, ...] | None = None
    """The data: for each worker (samples, *slice shape)."""
    representations: tuple[Tensor, ...] | None = None
    """The internal representations: for each worker (samples, inputs of the layer)."""
    layers: tuple[str, ...] | None = None
    """For each worker the name of the layer whose inputs the representations are."""
    labels: Tensor | None = None
    """The class of each sample, -1 where unknown."""
    cells: tuple[tuple[int, ...], ...] = ()
    """Groups of samples that no batch tells apart: within one the order is arbitrary."""
    certificates: Tensor | None = None
    """(samples, workers): how badly the recovery explains the gradients, relative; small is right, NaN is "nothing leaked"."""
    used: tuple[str, ...] = ("indices", "parameters", "gradients")
    """What the attack made use of."""
    notes: tuple[str, ...] = field(default=())
    """Sentences for the report."""


class Attack(Protocol):
    """A running attack."""

    def observe(self, observation: Observation) -> None:
        """Take in one round as it comes."""

    def recover(self, progress: Progress) -> Recovery:
        """Return the best estimate from the rounds so far."""


class AttackPlugin(Plugin):
    """An attack by name: its fields are its options."""

    def start(self, setting: Setting) -> Attack:
        """Begin, or raise UserError with a sentence that says what the setting lacks."""
        raise NotImplementedError


attacks: Registry[AttackPlugin] = Registry("attack", "cafe.attacks", ["attacker.none", "attacker.least_squares"])


def silent(step: str, done: int, total: int) -> None:
    """Show nothing: the progress for callers that want none."""
