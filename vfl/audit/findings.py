"""What an attack's scores say of each party's data, beside a guess: the findings of an audit."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from vfl.audit.plan import Planned, attack_words
from vfl.audit.schema import Attempt, Finding
from vfl.folder.scores import MARGIN_DB, ColumnScore, Right, is_beyond
from vfl.folder.summary import Summary
from vfl.folder.verdict import listed
from vfl.seats import names_of_seats
from vfl.topology import Topology

HALF = 0.5
"""From this share of what a guess leaves open on, data count as leaked and not as leaked in part."""
WHOLE = 0.99
"""A column of which so many values are right is known."""
SURE = 4.0
"""A score so many standard errors above chance is no chance."""


def read_findings(summary: Summary, planned: Planned, made: Attempt, *, topology: Topology) -> list[Finding]:
    """Return a finding for each kind of data that the attack was scored on, and each party that holds some of it."""
    about: dict[str, Any] = {
        "adversary": made.adversary,
        "attack": attack_words(planned.section),
        "defence": made.defence,
        "evidence": made.folder,
    }
    who = names_of_seats(planned.seats)
    after = f"after {summary.rounds} {'round' if summary.rounds == 1 else 'rounds'}"
    parts = (*_tables(summary), *_images(summary), *_labels(summary, topology), *_representations(summary))
    return [
        Finding(
            **about,
            **part,
            learned=learned,
            sentence=f"{_capital(who)} {'know' if len(planned.seats) > 1 else 'knows'} {learned}, {after}.",
        )
        for part, learned in parts
    ]


Said = tuple[dict[str, Any], str]


def _tables(summary: Summary) -> Iterator[Said]:
    attack, samples = summary.attack, summary.samples or 0
    for party in attack.parties:
        if party.values is None:
            continue
        own = [column for column in attack.columns if column.worker == party.worker]
        target = f"worker {party.worker}"
        scored = _scored(target, "columns", party.values)
        # The mean over the columns of what is known of each: a column that is worse than a guess takes nothing away.
        beyond = fmean(column.best.beyond for column in own) if own else 0.0
        state = "guess" if not party.values.leaked else "leaked" if beyond >= HALF else "partly"
        yield scored | {"beyond": beyond, "state": state}, _columns(own, party.values, target, samples)
        if party.rows is not None and len(own) > 1 and len(attack.parties) > 1:
            yield _rows(party.rows, target, samples)
    if attack.exact is not None:
        yield _rows(attack.exact, _workers([party.worker for party in attack.parties]), samples)


def _rows(found: Right, target: str, samples: int) -> Said:
    right = round((found.right or 0.0) * samples)
    share = "all" if right == samples else f"{right} of"
    words = f"{share} {samples} whole rows of {target} (every value to a thousandth of its column's range)"
    return _scored(target, "rows", found), words


def _columns(own: Sequence[ColumnScore], values: Right, target: str, samples: int) -> str:
    guess = f"(a guess has {values.guess or 0.0:.1%})"
    columns = f"{len(own)} columns" if len(own) > 1 else "one column"
    if all((column.exact.right or 0.0) >= WHOLE for column in own):
        least = min(column.exact.right or 0.0 for column in own)
        rows = f"all {samples} rows" if least == 1 else f"{round(least * samples)} of {samples} rows or more"
        named = f"all {columns}" if len(own) > 1 else "the one column"
        return f"{named} of {target} in {rows} (a guess has {values.guess or 0.0:.1%} of the values)"
    leaked = sorted((one for one in own if one.leaked), key=lambda one: -one.best.beyond)
    if leaked and len(leaked) < len(own):
        return f"{len(leaked)} of {columns} of {target} better than a guess: {listed([_column(one) for one in leaked])}"
    return f"{values.right or 0.0:.1%} of the values {guess} in the {columns} of {target}"


def _column(score: ColumnScore) -> str:
    """Name a column with what is known of it; its holder is named already."""
    if score.best.leaked:
        return score.in_words.replace(f" of worker {score.worker}", "")
    return f"{score.name} ({score.r2 or 0.0:.0%} of how its values differ is explained; a guess explains nothing)"


def _workers(numbers: Sequence[int]) -> str:
    if not numbers:
        return "all workers"
    *first, last = map(str, numbers)
    return f"workers {', '.join(first)} and {last}" if first else f"worker {last}"


def _scored(target: str, what: str, found: Right) -> dict[str, Any]:
    beyond = found.beyond
    state = "guess" if not found.leaked else "leaked" if beyond >= HALF else "partly"
    right, guess = found.right or 0.0, found.guess or 0.0
    return {"target": target, "what": what, "leaked": right, "guess": guess, "beyond": beyond, "state": state}


def _images(summary: Summary) -> Iterator[Said]:
    attack = summary.attack
    if attack.share_30db is None:
        return
    share, samples = attack.share_30db, summary.samples or 0
    target = _workers([party.worker for party in attack.parties if party.psnr is not None])
    error, guess = attack.mse_mean, attack.mse_baseline
    nearer = max(0.0, 1 - error / guess) if error is not None and guess else 0.0
    beyond = is_beyond(attack.psnr_mean, attack.psnr_baseline, MARGIN_DB) or share > 0
    beyond = beyond or any(party.leak for party in attack.parties)
    state = "guess" if not beyond else "leaked" if share >= HALF else "partly"
    right = round(share * samples)
    sentence = (
        f"{'all' if right == samples else f'{right} of'} {samples} images of {target} (30 dB or better; the mean is "
        f"{attack.psnr_mean or 0.0:.1f} dB, that of guessing the mean image {attack.psnr_baseline or 0.0:.1f} dB)"
    )
    known = max(share, nearer if beyond else 0.0)
    yield {
        "target": target, "what": "images", "leaked": share, "guess": 0.0, "beyond": known, "state": state
    }, sentence  # fmt: skip


def _labels(summary: Summary, topology: Topology) -> Iterator[Said]:
    attack, samples = summary.attack, summary.samples or 0
    if attack.labels is None:
        return
    at = "the coordinator" if topology.labels_at_coordinator else f"worker {topology.label_holder}"
    target = "all workers" if topology.is_horizontal else at
    scored = _scored(target, "labels", attack.labels)
    right, guess = (round((share or 0.0) * samples) for share in (attack.labels.right, attack.labels.guess))
    which = ", though not which class is called what" if attack.labels_named is False else ""
    parted = ""
    chance = SURE / math.sqrt(3 * samples) if samples else 1.0  # of the area under the curve of a guess, equal classes
    if attack.label_auc is not None and attack.label_auc - 0.5 > chance:
        beyond = max(scored["beyond"], 2 * attack.label_auc - 1)
        scored |= {"beyond": beyond, "state": "leaked" if beyond >= HALF else "partly"}
        parted = f", and how likely each is, with an AUC of {attack.label_auc:.2f} (a guess: 0.5)"
    share = "all" if right == samples else f"{right} of"
    yield scored, f"{share} {samples} labels of {target} (a guess has {guess}){which}{parted}"


def _representations(summary: Summary) -> Iterator[Said]:
    error, guess = summary.attack.representation_error, summary.attack.representation_baseline
    if error is None or not guess:
        return
    beyond = max(0.0, 1 - error / guess)
    state = "leaked" if error < 0.1 else "partly" if error < 0.9 * guess else "guess"
    yield {
        "target": "all workers", "what": "representations", "leaked": max(0.0, 1 - error), "guess": max(0.0, 1 - guess),
        "beyond": beyond if state != "guess" else 0.0, "state": state,
    }, f"what enters each worker's first fully connected layer, with a relative error of {error:.1e}"  # fmt: skip


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
