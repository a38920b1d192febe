"""What an audit tries: every seat with every attack that can be played from it, the worst first."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attacker.interface import RefusalError, attacks
from attacker.start import refusal_of
from vfl.config import RunConfig
from vfl.errors import CafeError, UserError
from vfl.observation import Setting, united
from vfl.registry import PluginSection
from vfl.seats import COORDINATOR, Seat, adversary_of, names_of_seats
from vfl.topology import Topology

WORST = ("exact", "label_clusters", "output_inversion")
"""Where these run they have left little to others, in seconds: they come first."""
SLOW = ("attacker.matching.", "attacker.cafe", "attacker.outputs.sdar", "attacker.active.")
"""Modules of attacks that take thousands of iterations, or a run of their own: they come last."""
NOT_SHOWN = "that says nothing about safety"


@dataclass(frozen=True)
class Planned:
    """An attack to try from some seats; `refusal` is why it cannot run."""

    seats: tuple[Seat, ...]
    section: PluginSection
    refusal: str = ""
    told: bool = False

    @property
    def adversary(self) -> Any:
        """Return the seats as a config has them."""
        return adversary_of(self.seats)

    @property
    def name(self) -> str:
        """Name seats and attack."""
        return f"{names_of_seats(self.seats)}, {attack_words(self.section)}"


def all_seats(topology: Topology) -> tuple[Seat, ...]:
    """Return every party that sees something of another's data."""
    if topology.is_horizontal:
        return (COORDINATOR,)
    workers = [Seat("worker", worker) for worker in range(topology.workers) if worker != topology.label_holder]
    holder = [] if topology.labels_at_coordinator else [Seat("label_holder", topology.label_holder)]
    return (COORDINATOR, *workers, *holder)


def plan_attacks(
    settings: Mapping[Seat, Setting],
    config: RunConfig,
    only: Sequence[PluginSection] | None = None,
    *,
    runs: bool = False,
) -> list[Planned]:
    """Return every attack from every seat that it can be played from, as far as the seats' settings are known.

    The config's own attack keeps its options; the others have their defaults. `only` has those to try instead. Where
    the federation `runs` here, attacks of a party that breaks the protocol are played by one.
    """
    planned = [
        _planned(section, seats, settings, runs=runs)
        for section in _sections(config, only)
        for seats in _seatings(section, tuple(settings))
    ]
    return sorted(planned, key=lambda one: (_tier(one), len(one.seats), _place(one, tuple(settings))))


def check_attacks(sections: Sequence[PluginSection]) -> None:
    """Refuse an attack that there is not, or options that it has not, with a sentence."""
    for section in sections:
        attacks.build(section)


def attack_words(section: PluginSection) -> str:
    """Name an attack with its options."""
    options = ", ".join(f"{key}: {_option(value)}" for key, value in section.options.items())
    return f"{section.name} ({options})" if options else section.name


def _option(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_option(one)}" if key == "name" else f"{key}: {_option(one)}" for key, one in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sections(config: RunConfig, only: Sequence[PluginSection] | None) -> Iterator[PluginSection]:
    if only is not None:
        yield from only
        return
    for name in dict.fromkeys([config.attack.name, *attacks.names()]):
        if name != "none":
            yield config.attack if name == config.attack.name else PluginSection(name=name)


def _seatings(section: PluginSection, there: Sequence[Seat]) -> Iterator[tuple[Seat, ...]]:
    """Yield the seats that an attack is played from, each way that it can be: a worker's from every worker."""
    try:
        ways = attacks.find(section.name).seats
    except UserError:
        ways = (frozenset({COORDINATOR.kind}),)  # what is wrong with it is said where it is refused
    for kinds in ways:
        each = [[seat for seat in there if seat.kind == kind] for kind in sorted(kinds)]
        yield from (tuple(sorted(seats, key=there.index)) for seats in itertools.product(*each))


def _planned(
    section: PluginSection, seats: tuple[Seat, ...], settings: Mapping[Seat, Setting], *, runs: bool
) -> Planned:
    setting = united([settings[seat] for seat in seats])
    if runs and is_active(section):
        seats = tuple(replace(seat, malicious=True) for seat in seats)
        setting = replace(setting, seats=seats)
    refusal = refusal_of(section, setting)
    if refusal is not None and not section.options and _takes_apart(section):
        alone = PluginSection.model_validate({"name": section.name, "disaggregate": True})
        if refusal_of(alone, setting) is None:
            return Planned(seats, alone)
    return Planned(seats, section, "" if refusal is None else reason(refusal))


def _takes_apart(section: PluginSection) -> bool:
    """Tell whether an attack on single samples can take the batches of frozen parameters apart first."""
    try:
        return "disaggregate" in attacks.find(section.name).model_fields
    except UserError:
        return False


def reason(refusal: CafeError) -> str:
    """Say what an attack needs and does not find."""
    return refusal.reason if isinstance(refusal, RefusalError) else str(refusal)


def is_slow(planned: Planned) -> bool:
    """Tell whether an attack takes thousands of iterations."""
    try:
        return attacks.find(planned.section.name).__module__.startswith(SLOW)
    except UserError:
        return False


def is_active(section: PluginSection) -> bool:
    """Tell whether an attack is played by a party that breaks the protocol: no recording can be attacked with it."""
    try:
        return attacks.find(section.name).active
    except UserError:
        return False


def _tier(planned: Planned) -> int:
    return 0 if planned.section.name in WORST else 2 if is_slow(planned) else 1


def _place(planned: Planned, there: Sequence[Seat]) -> tuple[int, ...]:
    return tuple(there.index(seat) for seat in planned.seats)
