"""The attackers that learned too much without a defence: the worst that each defence meets first, and all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from vfl.audit.course import Run
from vfl.audit.defending.defences import Candidate, place_of
from vfl.audit.judgement import EQUAL, attacker
from vfl.audit.plan import Planned
from vfl.audit.schema import Attempt, Finding
from vfl.config import RunConfig
from vfl.config.places import Place

MOST_ATTACKERS = 6
"""So many attackers of a place a defence meets first, the worst of each seat and kind of data before others."""


@dataclass(frozen=True)
class Defending:
    """What defences are tried with: the config, all attacks, the worst of them, and how far training came."""

    config: RunConfig
    planned: Sequence[Planned]
    worst: dict[Place, list[Planned]]
    """By the place where a defence must act to change what they see."""
    rounds: int
    candidates: Sequence[Candidate] = ()
    """The defences, each tried alone."""

    def against(self, candidate: Candidate) -> list[Planned]:
        """Return the worst attackers whose view a defence changes."""
        return [one for place in candidate.places for one in self.worst.get(place, ())]

    @property
    def names(self) -> list[str]:
        """Return the names of the worst attackers."""
        return [one.name for own in self.worst.values() for one in own]


def attackers_above(run: Run, planned: Sequence[Planned]) -> list[Planned]:
    """Return all attackers that learned more than the limit without a defence, who learned most first."""
    most = {attacker(one): max(part.beyond for part in over) for one in run.audit.attempts if (over := _over(run, one))}
    plans = {one.name: one for one in planned}
    return [plans[name] for name in sorted(most, key=lambda name: -most[name]) if name in plans]


def worst_attackers(run: Run, planned: Sequence[Planned]) -> dict[Place, list[Planned]]:
    """Return by place the attackers above the limit that learned most: one of each seat for each kind of data."""
    plans = {one.name: one for one in planned}
    places = places_of(run, attackers_above(run, planned))
    worst: dict[tuple[str, ...], tuple[float, str]] = {}
    for attempt in run.audit.attempts:
        name = attacker(attempt)
        for finding in _over(run, attempt) if name in places else ():
            key = (places[name], str(finding.adversary), finding.target, finding.what)
            # of equals the one that was made first: attempts are in the order of what finds the worst early
            if key not in worst or finding.beyond > worst[key][0] + EQUAL:
                worst[key] = (finding.beyond, name)
    found: dict[Place, list[Planned]] = {}
    for name in dict.fromkeys(name for _, name in sorted(worst.values(), key=lambda one: -one[0])):
        found.setdefault(places[name], []).append(plans[name])
    return {place: own[:MOST_ATTACKERS] for place, own in found.items()}


def places_of(run: Run, planned: Sequence[Planned]) -> dict[str, Place]:
    """Return by attacker's name the place where a defence must act to change what it sees."""
    used = {attacker(one): one.used for one in run.audit.attempts if one.defence == run.audit.base}
    return {one.name: place_of(one.seats, used[one.name]) for one in planned}


def _over(run: Run, attempt: Attempt) -> list[Finding]:
    """Return what an attempt without a defence found above the limit; what chance may explain is not among it."""
    own = attempt.findings if attempt.defence == run.audit.base else ()
    return [one for one in own if one.beyond > run.audit.limit and one.state != "guess"]
