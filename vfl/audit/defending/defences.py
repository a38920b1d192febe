"""Which defences an audit tries: those that act where a seat learned too much, mild ones before strong ones."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attacker.interface import attacks
from attacker.start import refusal_of
from vfl.audit.plan import Planned, attack_words, reason
from vfl.config import RunConfig
from vfl.config.places import NONE, PLACES, DefencesByPlace, Place
from vfl.errors import CafeError, UserError
from vfl.observation import Setting
from vfl.registry import PluginSection
from vfl.seats import COORDINATOR, Seat, SeatKind
from worker.defences import defences

STRENGTHS: dict[str, tuple[dict[str, Any], ...]] = {
    "marvell": ({"strength": 16.0}, {"strength": 64.0}),
    "random_labels": ({"epsilon": 1.0}, {"epsilon": 0.25}),
    "dp": ({"epsilon": 10.0, "batches": "known"}, {"epsilon": 1.0, "batches": "known"}),
    "noise": ({"scale": 1.0}, {"scale": 0.1}, {"scale": 10.0}),
    "quantize": ({"bits": 1}, {"bits": 4}),
    "clip": ({"norm": 0.03},),
}
"""With which options a defence is tried, in this order; one that is not here has its defaults."""
SEEN: dict[str, Place] = {"outputs": "outputs", "answers": "answers", "gradients": "uploads"}
"""At which place a defence changes what an attack used."""
SEATS: dict[SeatKind, Place] = {"label_holder": "outputs", "worker": "answers", "coordinator": "uploads"}
"""The same for an attack that does not say what it used, by its seat."""
NOISY = ("marvell", "max_norm", "noise")
"""Defences that draw noise on answers anew in every round: what a worker's attack on labels can be told of."""
LAST = ("breaker", "soteria", "clip")
"""They stop training, or little: tried last."""


@dataclass(frozen=True)
class Candidate:
    """A defence to try: its name here, what a config says under `defence`, and the places where it acts."""

    label: str
    section: dict[Place, Any]
    places: tuple[Place, ...]


def place_of(seats: Sequence[Seat], used: Sequence[str]) -> Place:
    """Return where a defence must act to change what an attack saw; a worker makes its own gradients from answers."""
    kinds = {seat.kind for seat in seats}
    seen = [place for what, place in SEEN.items() if what in used and kinds != {"worker"}]
    return (seen or [place for kind, place in SEATS.items() if kind in kinds])[0]


def named_candidate(tree: Any) -> Candidate:
    """Return the defence that the user names, as a config has it."""
    named = [place for place in PLACES if isinstance(tree, dict) and place in tree]
    by_place: dict[Place, Any] = {place: _by_name(tree[place]) for place in named} or {"uploads": _by_name(tree)}
    return Candidate(defence_words(by_place), by_place, tuple(by_place))


def _by_name(tree: Any) -> Any:
    return {"name": tree} if isinstance(tree, str) else tree


def all_candidates(needed: Collection[Place]) -> list[Candidate]:
    """Return all defences that act at these places, which take turns."""
    each = [list(_at(place)) for place in PLACES if place in needed]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*each))
    return [one for one in turns if one is not None]


def _at(place: Place) -> Iterator[Candidate]:
    """Yield the defences of a place: each with its first options, then with the next ones."""
    names = [name for name in defences.names() if name != "none" and place in _places(name)]
    names.sort(key=lambda name: (name in LAST, name not in STRENGTHS, [*STRENGTHS, name].index(name)))
    tried = [[{"name": name, **options} for options in STRENGTHS.get(name, ({},))] for name in names]
    for turn in itertools.zip_longest(*tried):
        for section in turn:
            if section is not None:
                by_place = {place: section}
                yield Candidate(defence_words(by_place), by_place, (place,))


def _places(name: str) -> frozenset[Place]:
    try:
        return defences.find(name).places
    except UserError:
        return frozenset()


def together(parts: Sequence[Candidate]) -> Candidate:
    """Return several defences at different places as one."""
    section = {place: tree for one in parts for place, tree in one.section.items()}
    return Candidate(defence_words(section), section, tuple(section))


def with_candidate(config: RunConfig, candidate: Candidate) -> dict[Any, Any]:
    """Return what a config says under `defence` with a candidate at its places, and its own at the others."""
    own = config.defence if isinstance(config.defence, DefencesByPlace) else DefencesByPlace(uploads=config.defence)
    tree = {place: part for place, part in own.model_dump(mode="json").items() if part != NONE.model_dump(mode="json")}
    return tree | candidate.section


def defence_words(by_place: dict[Any, Any]) -> str:
    """Name defences: noise (scale: 0.1) on uploads."""
    return " and ".join(f"{_chain(tree)} on {place}" for place, tree in by_place.items())


def _chain(tree: Any) -> str:
    if isinstance(tree, list):
        return " then ".join(map(_chain, tree))
    if isinstance(tree, dict) and "name" in tree:
        return attack_words(PluginSection.model_validate(tree))
    return str(tree)


def told_attackers(
    candidate: Candidate, settings: Mapping[Seat, Setting], against: Sequence[Planned] = ()
) -> tuple[list[Planned], str]:
    """Return attackers that know of a defence, and a sentence on what of it none can be told of, or why none can run.

    They know of a defence of uploads at the coordinator, of one of answers at the workers that it is tried `against`.
    """
    planned, missing = list[Planned](), list[str]()
    for place, tree in candidate.section.items():
        names = [one["name"] for one in _sections(tree)]
        told = [one for name in names for one in _told(place, name, tree)]
        plans = [Planned((seat,), one, told=True) for seat in _curious(place, settings, against) for one in told]
        refused = {one.name: refusal_of(one.section, settings[one.seats[0]]) for one in plans}
        able = [one for one in plans if refused[one.name] is None]
        planned += able
        if not able:
            missing += dict.fromkeys(
                f"the attacker that is told of it, {attack_words(one.section)}, cannot run here: {reason(refusal)}"
                for one in plans
                if (refusal := refused[one.name]) is not None
            ) or [f"no attack here can be told of {' and '.join(names)} on {place}"]
    return planned, "; ".join(missing)


def _curious(place: Place, settings: Mapping[Seat, Setting], against: Sequence[Planned]) -> list[Seat]:
    """Return the seats that see what is sent from a place, or to it: of workers those that learned too much, if any."""
    seats = [seat for seat in settings if SEATS[seat.kind] == place]
    learned = {seat for one in against for seat in one.seats}
    return [seat for seat in seats if seat in learned or seat == COORDINATOR] or seats


def _told(place: Place, name: str, tree: Any) -> Iterator[PluginSection]:
    """Yield attacks that are told of a defence at a place, in the form that each attack has for it."""
    for attack in attacks.names():
        try:
            fields = attacks.find(attack).model_fields
        except UserError:
            continue
        if place == "uploads" and name == "indices" and "trust_indices" in fields:
            yield PluginSection.model_validate({"name": attack, "trust_indices": False})
        elif "told" in fields and (place == "uploads" or (place == "answers" and name in NOISY)):
            bits = next((one["bits"] for one in _sections(tree) if one.get("bits")), None)
            known = {} if bits is None else {"bits": bits}
            said = {"name": name, **known} if place == "uploads" else True
            section = PluginSection.model_validate({"name": attack, "told": said})
            try:
                attacks.build(section)
            except CafeError:
                continue
            yield section


def _sections(tree: Any) -> list[dict[str, Any]]:
    """Return the defences of a place; of defences by worker those of the others."""
    if isinstance(tree, list):
        return [one for part in tree for one in _sections(part)]
    if isinstance(tree, str):
        return [{"name": tree}]
    return [tree] if "name" in tree else _sections(tree.get("others", []))
