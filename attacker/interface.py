"""What an attack is: it observes rounds, then recovers; it never sees more than `Observation` and `Setting`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from attacker.checking import fitting
from vfl.cluster import leave
from vfl.observation import Observation, Setting
from vfl.recovery import Recovery
from vfl.registry import Plugin, PluginSection, Registry

__all__ = [
    "Attack", "AttackPlugin", "Observation", "Progress", "Recovery", "Setting",
    "attacks", "share", "silent", "start_attack",
]  # fmt: skip

Progress = Callable[[str, int, int], None]
"""Called as progress("step III", done, total); may raise to interrupt the attack."""


def share(progress: Progress, make: Callable[[], Recovery]) -> None:
    """Offer an unfinished estimate; `make` is called only if whoever gave the progress wants to see one now."""
    estimate = getattr(progress, "estimate", None)
    if estimate is not None:
        estimate(make)


class Attack(Protocol):
    """A running attack."""

    def observe(self, observation: Observation) -> None:
        """Take in one round as it comes."""

    @property
    def recover(self) -> Callable[..., Recovery]:
        """Called with a `Progress`, if it takes one: returns the best estimate from the rounds so far."""


class AttackPlugin(Plugin):
    """An attack by name: its fields are its options."""

    def start(self, setting: Setting) -> Attack:
        """Begin, or raise UserError with a sentence that says what the setting lacks."""
        raise NotImplementedError


attacks: Registry[AttackPlugin] = Registry(
    "attack",
    AttackPlugin,
    "cafe.attacks",
    [
        "attacker.none",
        "attacker.least_squares",
        "attacker.exact",
        "attacker.adaptive",
        "attacker.cafe",
        "attacker.theory",
        "attacker.rgap",
        "attacker.matching.rivals",
    ],
)


def start_attack(section: PluginSection, setting: Setting) -> Attack:
    """Start the attack that a config names; what goes wrong inside a plug-in of somebody else bears its name."""
    from attacker.horizontal import Horizontal  # which is an attack itself

    plugin = attacks.build(section)

    def start(seen: Setting) -> Attack:
        with attacks.guard(section.name, plugin, "start"):
            return _Named(section.name, plugin, plugin.start(seen), seen)

    return Horizontal(setting, start) if setting.shares else start(setting)


@dataclass(frozen=True)
class _Named:
    """An attack that says whose error it is, also if what it hands over does not fit the setting."""

    name: str
    plugin: AttackPlugin
    attack: Attack
    setting: Setting
    shown: set[int] = field(default_factory=set)
    """The rounds so far."""

    def observe(self, observation: Observation) -> None:
        """Take in one round as it comes."""
        self.shown.add(observation.round)
        with attacks.guard(self.name, self.plugin, "observe"):
            self.attack.observe(observation)

    def recover(self, progress: Progress) -> Recovery:
        """Return the best estimate from the rounds so far."""
        try:
            with attacks.guard(self.name, self.plugin, "recover"):
                return self._fitting(_recovered(self.attack, _Checked(progress, self._fitting)))
        finally:
            leave()

    def _fitting(self, recovery: object) -> Recovery:
        return fitting(self.name, recovery, self.setting, self.shown)


@dataclass(frozen=True)
class _Checked:
    """The progress of an attack whose unfinished estimates are checked, too."""

    progress: Progress
    fitting: Callable[[object], Recovery]

    def __call__(self, step: str, done: int, total: int) -> None:
        self.progress(step, done, total)

    def estimate(self, make: Callable[[], Recovery]) -> None:
        """Offer an estimate, if anybody wants to see one."""
        share(self.progress, lambda: self.fitting(make()))


def _recovered(attack: Any, progress: Progress) -> Any:
    """Let an attack recover; one that shows no progress need not take any."""
    signature = inspect.signature(attack.recover)
    named = signature.parameters.get("progress")
    if named is not None and named.kind in (named.POSITIONAL_OR_KEYWORD, named.KEYWORD_ONLY):
        return attack.recover(progress=progress)
    try:
        signature.bind(progress)
    except TypeError:
        return attack.recover()
    return attack.recover(progress)


def silent(step: str, done: int, total: int) -> None:
    """Show nothing: the progress for callers that want none."""
