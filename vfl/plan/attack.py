"""How many rounds an attack needs: the fewest with which it starts, asked of the attack itself."""

import math
from dataclasses import dataclass, replace

from attacker.exact import Exact
from attacker.exact.choice import Choice, choose
from attacker.interface import attacks
from attacker.least_squares import LeastSquares
from attacker.rgap import RGap
from attacker.start import start_attack
from attacker.theory import Theory
from vfl.config import RunConfig
from vfl.errors import UserError
from vfl.observation import Setting

MOST_EPOCHS = 1 << 20

SOLVING = (Exact, LeastSquares, RGap, Theory)
"""Attacks that solve equations: once they have enough rounds, more do not help."""


@dataclass(frozen=True)
class Needs:
    """What an attack needs of a run."""

    attack: str
    rounds: int
    """The fewest rounds with which it starts; 0 where there is none."""
    enough: bool = True
    """Whether those are all it needs: an attack that guesses step by step improves with more."""
    refusal: str | None = None
    """Why it would not start with the config's rounds."""
    choice: Choice | None = None
    """`exact`: the method and the layers, with as many rounds as it needs."""
    single: bool = False

    @property
    def method(self) -> str | None:
        """Return how `exact` solves steps I and II."""
        return self.choice.method if self.choice else None


def needs_of(config: RunConfig, setting: Setting) -> Needs:
    """Find the fewest epochs with which the attack starts; raise its own refusal if no number of them is enough."""
    section = config.attack
    if section.name == "none":
        return Needs("none", 0)
    refusal = _refusal(config, setting)
    per_epoch = math.ceil(setting.samples / setting.batch_size)
    epochs = 1
    while _refusal(config, replace(setting, rounds=epochs * per_epoch)):
        epochs *= 2
        if epochs > MOST_EPOCHS:
            raise UserError(refusal or f"attack {section.name}: no number of rounds is enough")
    low = epochs // 2
    while epochs - low > 1:
        middle = (low + epochs) // 2
        if _refusal(config, replace(setting, rounds=middle * per_epoch)):
            low = middle
        else:
            epochs = middle
    rounds = epochs * per_epoch
    plugin = attacks.build(section)
    if not isinstance(plugin, Exact):
        return Needs(section.name, rounds, isinstance(plugin, SOLVING), refusal)
    played = setting if refusal is None else replace(setting, rounds=rounds)
    single = plugin.epochs == 1
    choice = choose(played, plugin.method, single)
    return Needs(section.name, rounds, refusal=refusal, choice=choice, single=single)


def _refusal(config: RunConfig, setting: Setting) -> str | None:
    try:
        start_attack(config.attack, setting)
    except UserError as error:
        return str(error)
    return None
