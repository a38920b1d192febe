"""An audit as a document: sections of paragraphs, tables and facts, which the page and the PDF show alike."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from vfl.audit.defending.advice import holds, may_hold
from vfl.audit.document import auditor
from vfl.audit.document.parts import LABELS, Block, Chapter, Entry, Facts, Grid, Words
from vfl.audit.findings import WHOLE
from vfl.audit.judgement import ORDER, attacker, is_clear, who
from vfl.audit.schema import NONE, Attempt, Audit, Outcome, Trial
from vfl.folder.words import amount, size


def chapters(audit: Audit) -> list[Chapter]:
    """Return the sections in the order of what people ask first; those that have nothing to say are left out."""
    made = [
        _verdict(audit),
        _recommendation(audit),
        _rows(audit),
        _columns(audit),
        _matrix(audit),
        _prices(audit),
        _basis(audit),
        _untested(audit),
        _worth(),
        auditor_chapter(audit),
        _again(audit),
    ]
    return [one for one in made if one.blocks]


def _verdict(audit: Audit) -> Chapter:
    lead = (
        "Every sentence here was checked against the truth, which a simulation has. Attacks are called by their names."
    )
    said = Words((*audit.sentences, *_own_units(audit)), marked=True)
    held = holdings(audit)
    return Chapter("verdict", "Who learns what of whom", lead, (Facts(held), said) if held else (said,))


def _own_units(audit: Audit) -> Iterator[str]:
    """Yield a sentence on how near the numbers of columns are that are known whole, in those columns' own units."""
    near = [f"{one.name} {amount(one.error)}" for one in audit.columns if one.error is not None and one.right >= WHOLE]
    if near:
        yield f"In their own units half of the rebuilt numbers are off by no more than: {', '.join(near)}."


def holdings(audit: Audit) -> tuple[tuple[str, str], ...]:
    """Return which file and columns are each worker's, where the config says so: its sentences name workers."""
    data, federation = audit.config.get("data", {}), audit.config.get("federation", {})
    files, holder = data.get("files") or [], federation.get("label_holder")
    columns: dict[str, list[str]] = {}
    for one in audit.columns:
        columns.setdefault(one.holder, []).append(one.name)
    found = []
    for worker in range(federation.get("workers", 0)):
        own = columns.get(f"worker {worker}", [])
        named = [Path(files[worker]).name] if len(files) == federation["workers"] else []
        named += [f"{len(own)} {'column' if len(own) == 1 else 'columns'} ({', '.join(own)})"] if own else []
        if worker == holder and named:
            label = data.get("label")
            named.append(f"the label ({label}); it is the label holder" if label else "the labels: the label holder")
        found += [(f"worker {worker}", "; ".join(named))] if named else []
    return tuple(found)


def _recommendation(audit: Audit) -> Chapter:
    advice = audit.recommendation
    if not advice.sentence:
        return Chapter("defence", "What stops it")
    line = yaml.safe_dump({"defence": advice.section}, default_flow_style=True, width=1000, sort_keys=False).strip()
    facts = [("in the config", line[1:-1])] if advice.section else []
    lists = (("held against", advice.held_against), ("not clear", advice.unclear), ("not met", advice.unmet))
    facts += [(name, "; ".join(attackers)) for name, attackers in lists if attackers]
    lead = (
        f"Below the limit: knows no more than {audit.limit:g} of what a guess leaves open; 0 is a guess, 1 is all. "
        "Uploads are what workers send the coordinator, outputs what they send the label holder, answers what it sends "
        "back."
    )
    return Chapter(
        "defence", "What stops it", lead, (Words((advice.sentence,)), *([Facts(tuple(facts))] if facts else []))
    )


def _rows(audit: Audit) -> Chapter:
    blocks = []
    for shown in audit.examples:
        lines = []
        for row in shown.rows:
            if row.pictures:
                pair = (
                    Entry(f"{row.name}, {what}", picture=one) for what, one in zip(_KINDS, row.pictures, strict=True)
                )
                lines.append((Entry(row.name), *pair, *map(Entry, row.found)))
                continue
            lines.append((Entry(row.name), Entry("real"), *map(Entry, row.real)))
            found = zip(row.found, row.real, strict=True)
            lines.append(
                (Entry(""), Entry("rebuilt"), *(Entry(one, "" if one == real else "wrong") for one, real in found))
            )
        title = f"{shown.adversary}, by {shown.attack}" + (f" ({shown.note})" if shown.note else "")
        head: tuple[str, ...] = ("row", "")
        widths = (1.0, 0.8, *(1.0 for _ in shown.columns))
        if any(row.pictures for row in shown.rows):
            head, widths = ("image", *_KINDS), (1.0, 1.0, 1.0, 3.0)
        blocks.append(Grid((*head, *shown.columns), tuple(lines), title, widths))
    lead = "Real, and as the adversary rebuilt it from what it was sent. In their own units; what differs is marked."
    return Chapter("rows", "Real and rebuilt, side by side", lead, tuple(blocks))


_KINDS = ("real", "rebuilt")


def _columns(audit: Audit) -> Chapter:
    lines = tuple(
        (
            Entry(one.name),
            Entry(one.holder),
            Entry(f"{one.right:.1%}"),
            Entry(f"{one.guess:.1%}"),
            Entry("–" if one.error is None else amount(one.error)),
        )
        for one in audit.columns
    )
    lead = (
        "Of the worst attack on each party's columns. Right: categories; numbers to a thousandth of their range, or to "
        "a twentieth where that says more. Off by: half of the numbers are no further off, in the column's own unit."
    )
    head = ("column", "held by", "right", "a guess", "off by")
    return Chapter("columns", "Column by column", lead, (Grid(head, lines, "", (2, 1, 1, 1, 1)),) if lines else ())


def _matrix(audit: Audit) -> Chapter:
    """Return seat and attack by defence."""
    defences = list(dict.fromkeys(one.defence for one in audit.attempts))
    rows: dict[str, dict[str, Attempt]] = {}
    for one in audit.attempts:
        rows.setdefault(attacker(one), {})[one.defence] = one
    lines = []
    for name, by_defence in sorted(rows.items(), key=lambda row: _severity(row[1].get(audit.base))):
        entries = [_place(by_defence.get(defence), audit.limit) for defence in defences]
        lines.append((Entry(name), *entries))
    lead = (
        "Each place is one attack from one seat; it leads to the report that shows it, or to why there is none. The "
        "number is how much is known of what a guess leaves open: 0 is a guess, 1 is all. Held means: against this "
        "attack, from this seat, and no other. An empty place: this attack did not meet this defence."
    )
    blocks = []
    for first in range(0, len(defences), MOST_DEFENCES):
        part = slice(1 + first, 1 + first + MOST_DEFENCES)
        there = tuple((line[0], *line[part]) for line in lines if any(entry.text for entry in line[part]))
        if there:
            head = ("seat and attack", *map(_defence, defences[first : first + MOST_DEFENCES]))
            blocks.append(Grid(head, there, "", (2.4, *(1.0 for _ in head[1:]))))
    return Chapter("matrix", "Every seat, attack and defence", lead, tuple(blocks))


def _defence(name: str) -> str:
    return "no defence" if name == NONE else name


def _severity(attempt: Attempt | None) -> tuple[int, int, float]:
    """Return where an attempt stands in the matrix: what leaked most first, what was refused last."""
    if attempt is None:
        return 0, 0, 0.0
    return OUTCOMES.index(attempt.outcome), ORDER.index(attempt.state), -_most(attempt)


def _most(attempt: Attempt) -> float:
    """Return how much is known of what is known best; what chance may explain is none of it where more is shown."""
    return max((one.beyond for one in attempt.findings if one.state == attempt.state), default=0.0)


OUTCOMES: tuple[Outcome, ...] = ("done", "out of time", "failed", "not run", "refused")
WHY = "#untested"
"""Where a place of the matrix leads that has no report: why the attack came to no result."""
MOST_DEFENCES = 6
"""So many columns of the matrix are beside each other; more go below."""


def _place(attempt: Attempt | None, limit: float) -> Entry:
    if attempt is None:
        return Entry("")
    if attempt.outcome != "done":
        return Entry(attempt.outcome, "open", WHY)
    link = f"{attempt.folder}/report.html" if attempt.folder else ""
    if not attempt.findings:
        return Entry("not scored", "open", link)
    most = _most(attempt)
    if attempt.state == "guess" and not is_clear(attempt, limit):
        return Entry(f"not clear {most:.2f}", "open", link)
    return Entry(f"{LABELS[attempt.state]} {most:.2f}", attempt.state, link)


def _prices(audit: Audit) -> Chapter:
    tried = [one for one in audit.trials if one.outcome != "not run"]
    if not tried:
        return Chapter("prices", "")
    base = audit.training
    none = (Entry("as it is"), Entry(""), *_price(base.loss, base.accuracy, base.seconds, base.bytes), Entry(""))
    lines = [none, *(_trial(one) for one in tried)]
    lead = (
        f"Each defence was run for real, with the same seed and {base.rounds} rounds. Known at most: of what a guess "
        f"leaves open, by the worst of the attackers it met; the limit is {audit.limit:g}."
    )
    head = ("defence", "known at most", "loss", "accuracy", "time", "on the wire", "attackers")
    return Chapter(
        "prices", "Defences and their prices", lead, (Grid(head, tuple(lines), "", (2, 0.8, 0.7, 0.8, 0.7, 0.9, 3)),)
    )


def _trial(trial: Trial) -> tuple[Entry, ...]:
    trained = trial.training
    prices = (
        _price(trained.loss, trained.accuracy, trained.seconds, trained.bytes) if trained.rounds else (Entry("–"),) * 4
    )
    if trial.outcome != "done":
        return Entry(trial.defence), Entry(trial.outcome, "open"), *prices, Entry(trial.sentence)
    state = "partly" if trial.broken_by else "guess" if holds(trial) else "open"
    state = "leaked" if trial.broken_by and (trial.worst or 0.0) >= 0.5 else state
    known = "–" if trial.worst is None else f"{trial.worst:.2f}"
    said = [f"held against {'; '.join(trial.held_against)}" if trial.held_against else ""]
    said += [f"broken by {'; '.join(trial.broken_by)}" if trial.broken_by else ""]
    said += [f"not clear, as chance may explain it: {'; '.join(trial.unclear)}" if trial.unclear else ""]
    said += [f"no result: {'; '.join(trial.undecided)}" if trial.undecided else ""]
    said += [f"not met: {'; '.join(trial.unmet)}" if trial.unmet and may_hold(trial) else "", trial.told]
    return (
        Entry(trial.defence),
        Entry(known, state),
        *prices,
        Entry(". ".join(one[:1].upper() + one[1:] for one in said if one)),
    )


def _price(loss: float | None, accuracy: float | None, seconds: float | None, wire: int) -> tuple[Entry, ...]:
    return (
        Entry("–" if loss is None else f"{loss:.4g}"),
        Entry("–" if accuracy is None else f"{accuracy:.1%}"),
        Entry("–" if seconds is None else f"{seconds:.1f} s"),
        Entry(size(wire) if wire else "–"),
    )


def _basis(audit: Audit) -> Chapter:
    done = [one for one in audit.attempts if one.ledger]
    lines = tuple(
        (
            Entry(attacker(one)),
            Entry(_defence(one.defence)),
            Entry(one.ledger),
            Entry("–" if one.seconds is None else f"{one.seconds:.1f} s"),
        )
        for one in done
    )
    lead = "An attack is shown what its seat sees on the wire, and nothing else. What each says that it used of that:"
    head = ("seat and attack", "defence", "it used", "time")
    return Chapter(
        "basis", "What each result rests on", lead, (Grid(head, lines, "", (2, 1.2, 4, 0.6)),) if lines else ()
    )


def _untested(audit: Audit) -> Chapter:
    lines = tuple((Entry(one.what), Entry(one.why)) for one in audit.untested)
    lead = "Nothing is said of these. An attack that was refused, failed or ran out of time shows nothing."
    return Chapter(
        "untested", "What was not tested, and why", lead, (Grid(("what", "why"), lines, "", (1.5, 3)),) if lines else ()
    )


def _worth() -> Chapter:
    return Chapter("worth", "What a negative result is worth", "", (Words(auditor.NEGATIVE, marked=True),))


def auditor_chapter(audit: Audit) -> Chapter:
    """Return the same in the words of those who audit."""
    seats = list(dict.fromkeys(who(one.adversary) for one in audit.attempts))
    lines = tuple((Entry(seat), *map(Entry, auditor.knowledge(seat, audit))) for seat in seats)
    grid = Grid(("adversary", "knowledge", "capability"), lines, "", (1, 2.5, 1.5))
    risks = tuple(
        (Entry(name), Entry(state, state_key), Entry(why)) for name, state, state_key, why in auditor.risks(audit)
    )
    return Chapter(
        "auditor",
        "For the auditor",
        auditor.LEAD,
        (Facts(auditor.terms(audit)), grid, Grid(("risk", "here", "shown by"), risks, "", (1, 1, 3))),
    )


def _again(audit: Audit) -> Chapter:
    pairs = [
        ("command", audit.command),
        ("config digest", f"SHA-256 {audit.digest}" if audit.digest else "of a recorded run"),
        ("seed", "not known" if audit.seed is None else str(audit.seed)),
        ("budget", f"{audit.budget:.0f} s, of which {audit.seconds:.0f} s were used"),
        ("made", audit.created),
        *((name, str(version)) for name, version in audit.versions.items()),
    ]
    lead = (
        "The same versions on the same kind of machine give the same numbers, but for what workers' defences draw in "
        "secret, and for attacks that ran out of time. audit.json holds all of this for programs, the config too."
    )
    return Chapter("again", "How to do it again", lead, (Facts(tuple(pairs)),))


def texts(blocks: Sequence[Block]) -> Iterator[str]:
    """Yield all that blocks say."""
    for block in blocks:
        if isinstance(block, Words):
            yield from block.lines
        elif isinstance(block, Facts):
            yield from (word for pair in block.pairs for word in pair)
        else:
            yield from (*block.head, *(entry.text for line in block.lines for entry in line))
