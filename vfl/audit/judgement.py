"""What an audit's attempts come to: who learns what of whom, what is not known, and what a negative is worth."""

from collections.abc import Iterable, Sequence
from typing import Any

from vfl.audit.plan import attack_words
from vfl.audit.schema import Attempt, Audit, Finding, State, Trial, Untested
from vfl.folder.verdict import seat_of
from vfl.registry import PluginSection
from vfl.seats import Seat, names_of_seats

ORDER: tuple[State, ...] = ("leaked", "partly", "guess", "open")
"""From the worst on."""
ROUNDS = "rounds after"
"""How what the recording left out is named."""
ALL_TRIED = "No attack found more than a guess"
EQUAL = 0.02
"""An attack that knows so little more than another is no worse."""


def conclude(audit: Audit, seats: Sequence[Any]) -> Audit:
    """Return the audit with its verdict, from all attempts against the federation as its config has it."""
    base = audit.base
    undefended = [one for one in audit.attempts if one.defence == base]
    findings = sorted(
        (finding for one in audit.attempts for finding in one.findings),
        key=lambda one: (one.defence != base, ORDER.index(one.state), -one.beyond),
    )
    states = [one.state for one in undefended] or ["open"]
    return audit.model_copy(
        update={
            "findings": findings,
            "verdict": min(states, key=ORDER.index),
            "headline": _headline(audit, undefended, seats),
            "sentences": [seat_sentence(adversary, audit, undefended) for adversary in seats],
            "untested": [
                *(one for one in audit.untested if one.what.startswith(ROUNDS)),
                *_untested(audit.attempts),
                *_defences(audit.trials),
                *_seats_without(seats, undefended),
            ],
        }
    )


def who(adversary: Any) -> str:
    """Name an adversary: a seat, or several."""
    seats = adversary if isinstance(adversary, list | tuple) else [adversary]
    return names_of_seats([one if isinstance(one, Seat) else seat_of(one) for one in seats])


def attacker(attempt: Attempt) -> str:
    """Name an attempt by seat and attack."""
    section = PluginSection.model_validate({"name": attempt.attack, **attempt.options})
    return f"{who(attempt.adversary)}, {attack_words(section)}"


def worst_of(attempts: Iterable[Attempt]) -> list[Finding]:
    """Return the worst finding on each kind of each party's data, of equals the first; the worst of all first."""
    worst: dict[tuple[str, str], Finding] = {}
    for finding in (one for attempt in attempts for one in attempt.findings):
        known = worst.get((finding.target, finding.what))
        if known is None or is_worse(finding, known):
            worst[finding.target, finding.what] = finding
    return sorted(worst.values(), key=lambda one: (ORDER.index(one.state), -one.beyond))


def is_worse(one: Finding, other: Finding) -> bool:
    """Tell whether a finding is clearly worse than another: what is no more than a guess never is."""
    if one.state != other.state:
        return ORDER.index(one.state) < ORDER.index(other.state)
    return one.beyond > other.beyond + EQUAL


def is_clear(attempt: Attempt, limit: float) -> bool:
    """Tell whether nothing was measured above the limit that chance may explain, but need not."""
    return all(one.beyond <= limit for one in attempt.findings if one.state == "guess")


def seat_sentence(adversary: Any, audit: Audit, attempts: Sequence[Attempt], *, most: int | None = None) -> str:
    """Say what one seat learns (the worst so many things), or which attacks alone learned no more than a guess."""
    rounds = audit.training.rounds
    own = [one for one in attempts if who(one.adversary) == who(adversary)]
    name = who(adversary)
    name = name[:1].upper() + name[1:]
    found = [one for one in worst_of(own) if one.state != "guess"]
    if found:
        named = [one for one in found if not _is_said(one, found)]
        more = "" if most is None or len(named) <= most else "; and more"
        named = named[:most]
        one_attack = len({one.attack for one in named}) == 1
        learned = [one.learned + ("" if one_attack else f" (by {one.attack})") for one in named]
        by = f", by {named[0].attack}" if one_attack else ""
        return f"{name}: {'; '.join(learned)}{more}; {_after(named, own, rounds)}{by}."
    scored = [
        (attacker(one).partition(f"{who(one.adversary)}, ")[2], is_clear(one, audit.limit))
        for one in own
        if one.findings
    ]
    if scored:
        held = ", ".join(attack for attack, clear in scored if clear)
        unclear = ", ".join(attack for attack, clear in scored if not clear)
        said = f" Held against {held}, and nothing is said of other attacks." if held else ""
        doubt = f" Not clear, as chance may explain what it found: {unclear}." if unclear else ""
        return f"{name}: no more than a guess.{said}{doubt}"
    shown = [one for one in own if one.outcome == "done"]
    if shown:
        return f"{name}: {shown[0].sentence}"
    return f"{name}: nothing is known, as no attack came to a result. That is no sign of safety."


def _is_said(finding: Finding, found: Sequence[Finding]) -> bool:
    """Tell whether whole rows say the same: a party's have its columns in them, those of all parties a party's."""
    rows = [one for one in found if one.what == "rows" and one.state == "leaked" and one is not finding]
    whole = [one for one in rows if one.target.startswith("workers")]
    if finding.what == "columns":
        return finding.state == "leaked" and bool(whole or any(one.target == finding.target for one in rows))
    return finding.what == "rows" and any(one.beyond >= finding.beyond - EQUAL for one in whole)


def _after(named: Sequence[Finding], attempts: Sequence[Attempt], rounds: int) -> str:
    """Say after how many rounds all of it is known."""
    evidence = {one.evidence for one in named}
    needed = [one.rounds for one in attempts if one.folder in evidence]
    known = [one for one in needed if one is not None]
    if known and len(known) == len(needed):
        return f"after {max(known)} of {rounds} rounds"
    return f"after {rounds} {'round' if rounds == 1 else 'rounds'}"


def _headline(audit: Audit, attempts: Sequence[Attempt], seats: Sequence[Any]) -> str:
    """Say what the seat that learns most learns, one seat before several together; and how many others do."""
    learning = {who(one.adversary): 0.0 for one in _all(attempts) if one.state != "guess"}
    for seat in learning:
        own = [one for one in attempts if who(one.adversary) == seat]
        learning[seat] = sum(one.beyond for one in worst_of(own) if one.state != "guess")
    if not learning:
        if any(one.findings for one in attempts):
            return f"{ALL_TRIED}; that is true of the attacks that were run, and of no other."
        return "No attack came to a result that could be scored: this audit shows nothing."
    named = [seat for seat in seats if who(seat) in learning]
    first = max(named, key=lambda seat: (len(seat) == 1, learning[who(seat)]))
    more = f" {len(named)} of {len(seats)} seats learn what they were never sent." if len(named) > 1 else ""
    return seat_sentence(first, audit, attempts, most=2) + more


def _all(attempts: Iterable[Attempt]) -> Iterable[Finding]:
    return (finding for one in attempts for finding in one.findings)


def _untested(attempts: Iterable[Attempt]) -> list[Untested]:
    gathered: dict[tuple[str, str, str], list[str]] = {}
    for one in attempts:
        if one.outcome != "done":
            section = PluginSection.model_validate({"name": one.attack, **one.options})
            where = "" if one.defence == "none" else f" (defence: {one.defence})"
            gathered.setdefault((attack_words(section), where, one.sentence), []).append(who(one.adversary))
    return [
        Untested(what=f"{attack}, from {', '.join(seats)}{where}", why=why)
        for (attack, where, why), seats in gathered.items()
    ]


def _defences(trials: Sequence[Trial]) -> list[Untested]:
    """Name the defences that were not tried, or came to no result, by why."""
    gathered: dict[str, list[str]] = {}
    for one in trials:
        if one.outcome != "done":
            gathered.setdefault(one.sentence, []).append(one.defence)
    return [
        Untested(
            what=f"{len(names)} {'defence' if len(names) == 1 else 'defences'}",
            why=f"{why} They are: {', '.join(names)}.",
        )
        for why, names in gathered.items()
    ]


def _seats_without(seats: Sequence[Any], attempts: Sequence[Attempt]) -> list[Untested]:
    """Name the seats from which no attack came to a scored result."""
    scored = {who(one.adversary) for one in attempts if one.findings}
    return [
        Untested(
            what=f"the seat of {who(seat)}", why="no attack from it came to a scored result; it may still learn much"
        )
        for seat in seats
        if who(seat) not in scored
    ]
