"""The verdict: leaked, partly leaked, or no more than a guess; of what, and against which attack it was measured."""

from dataclasses import dataclass
from typing import Any, Literal

from vfl.folder.scores import MARGIN_DB, MARGIN_SSIM, Right, is_beyond
from vfl.folder.summary import Attack, Summary
from vfl.seats import MaliciousHolder, MaliciousSeat, Seat, SeatKind, WorkerSeat, names_of_seats

State = Literal["leaked", "partly", "guess", "open"]
LABELS: dict[State, str] = {"leaked": "leaked", "partly": "partly leaked", "guess": "no more than a guess"}
MALICIOUS: dict[SeatKind, str] = {
    "coordinator": "THE COORDINATOR WAS MALICIOUS: it ordered batches and parameters of its attack's choosing, which "
    "workers follow only where their configs leave out checks (federation.checks).",
    "label_holder": "THE LABEL HOLDER WAS MALICIOUS: it answered the workers' outputs with what its attack chose, not "
    "with the loss's gradients.",
    "worker": "THE WORKER WAS MALICIOUS: it uploaded what its attack chose, not its bottom model's gradients.",
}
MOST_NAMED = 3
"""Of more columns or workers the first few are named, and the others counted."""


@dataclass(frozen=True)
class Verdict:
    """What a run showed: one of three states, or that it showed nothing (`open`)."""

    state: State
    label: str
    """The state in a word or two."""
    sentence: str
    basis: str = ""
    """The attack that it rests on."""


def verdict(summary: Summary) -> Verdict:
    """Say what the adversary learned, against what a guess without gradients gives."""
    attack = summary.attack
    found = _rebuilt(summary) or _labels_alone(summary) or _inner_layer(summary)
    if found is None:
        return _nothing_shown(summary)
    state, sentence = found
    warning = untested(summary)
    label = "defence not tested for real" if state == "guess" and warning else LABELS[state]
    if attack.ordered:
        sentence += f" The referee, not the attack, said which is which of {attack.ordered} that no batch tells apart."
    basis = f"Against `{attack.name}` alone: nothing is said of other attacks."
    if warned := malicious_words(summary):
        basis = f"{warned} {basis}"
    return Verdict("open" if state == "guess" and warning else state, label, sentence, basis)


def adversary_words(summary: Summary) -> str:
    """Name who was curious, to begin a sentence with."""
    seats = summary.attack.adversary
    named = names_of_seats([seat_of(one) for one in (seats if isinstance(seats, tuple) else (seats,))])
    return named[:1].upper() + named[1:]


def seen_words(summary: Summary) -> str:
    """Say what the adversary was sent, or holds, instead of other parties' data."""
    if isinstance(summary.attack.adversary, tuple):
        return "what they saw"
    seen: dict[SeatKind, str] = {"coordinator": "gradients", "label_holder": "outputs", "worker": "answers"}
    return seen[seat_of(summary.attack.adversary).kind]


def malicious_words(summary: Summary) -> str:
    """Say so if a party did not follow the protocol."""
    one = summary.attack.adversary
    seat = None if isinstance(one, tuple) else seat_of(one)
    return MALICIOUS[seat.kind] if seat is not None and seat.malicious else ""


def seat_of(one: Any) -> Seat:
    """Return a seat from the form that a config and a summary have it in."""
    if isinstance(one, MaliciousSeat):
        return Seat("coordinator", malicious=True)
    if isinstance(one, MaliciousHolder):
        return Seat("label_holder", malicious=True)
    return Seat("worker", one.worker, one.malicious) if isinstance(one, WorkerSeat) else Seat(one)


def _knows(summary: Summary) -> str:
    return "know" if isinstance(summary.attack.adversary, tuple) else "knows"


def untested(summary: Summary) -> str:
    """Return why the result says nothing of a defence, if that is so."""
    return next((str(report.warning) for report in summary.defence if report.warning), "")


def leaks(attack: Attack) -> list[str]:
    """Name the columns, slices and labels of which the attack knows more than a guess, those with the most first."""
    columns = sorted(attack.columns, key=lambda column: -(column.best.gain or 0.0))
    parties = sorted(attack.parties, key=lambda party: -(party.psnr or 0.0))
    named = [column.in_words for column in columns if column.leaked]
    named += [party.leak for party in parties if party.leak]
    return [*named, *([f"labels ({attack.labels.in_words})"] if attack.labels and attack.labels.leaked else [])]


def _rebuilt(summary: Summary) -> tuple[State, str] | None:
    """Judge images and rows."""
    attack, samples = summary.attack, summary.scored
    if attack.share_30db is not None:
        share, what = attack.share_30db, "images (30 dB or better)"
        beyond = share > 0 or is_beyond(attack.psnr_mean, attack.psnr_baseline, MARGIN_DB)
        beyond = beyond or is_beyond(attack.ssim_mean, attack.ssim_baseline, MARGIN_SSIM)
    elif attack.share_exact is not None:
        share, what, beyond = attack.share_exact, "rows exactly", bool(attack.exact and attack.exact.leaked)
    else:
        return None
    known = leaks(attack)
    count, rounds = round(share * samples), f"{summary.rounds} rounds of {seen_words(summary)}"
    sentence = f"{adversary_words(summary)} rebuilt {count} of {samples} {what} from {rounds}"
    if beyond and share >= 0.5:
        return "leaked", f"{sentence}."
    if known:
        return "partly", f"{sentence}, and {_knows(summary)} these better than a guess: {listed(known)}."
    if beyond:
        return "partly", f"{sentence}{'' if count else f', and {_knows(summary)} them better than a guess'}."
    return "guess", f"{sentence}, and {_knows(summary)} no more of them than a guess."


def _labels_alone(summary: Summary) -> tuple[State, str] | None:
    labels = summary.attack.labels
    if labels is None:
        return None
    samples = summary.scored
    right, guess = (round((share or 0.0) * samples) for share in (labels.right, labels.guess))
    knows = f"{adversary_words(summary)} {_knows(summary)} the labels of {right} of {samples} samples"
    named = ", though not which class is called what" if summary.attack.labels_named is False else ""
    rounds = f"after {summary.rounds} {'round' if summary.rounds == 1 else 'rounds'}"
    return _by_gain(labels), f"{knows} {rounds}{named}; the best guess has {guess}."


def _by_gain(found: Right) -> State:
    """Call it leaked if at least half of what a guess leaves open is known."""
    if not found.leaked:
        return "guess"
    return "leaked" if 2 * (found.gain or 0.0) >= 1 - (found.guess or 0.0) else "partly"


def _inner_layer(summary: Summary) -> tuple[State, str] | None:
    error, guess = summary.attack.representation_error, summary.attack.representation_baseline
    if error is None:
        return None
    sentence = (
        f"{adversary_words(summary)} {_knows(summary)} what enters every worker's first fully connected layer, to a "
        f"relative error of "
        f"{error:.1e} (median{'' if guess is None else f'; guessing the mean: {guess:.1e}'}), "
        f"from {summary.rounds} rounds of {seen_words(summary)}."
    )
    return "leaked" if error < 0.1 else "partly" if error < 0.9 * (guess or 1.0) else "guess", sentence


def _nothing_shown(summary: Summary) -> Verdict:
    attack = summary.attack
    if attack.used:
        why = "there is no ground truth here, or it recovered neither samples nor labels"
        return Verdict("open", "not scored", f"The attack's result is not scored: {why}.", malicious_words(summary))
    if attack.name == "none":
        return Verdict("open", "no attack" if summary.complete else "not finished", "No attack was run.")
    if attack.elsewhere:
        whose = f"{adversary_words(summary)} played `{attack.name}`"
        sentence = f"{whose}: what came of it is in the folder of that party."
        return Verdict("open", "played elsewhere", sentence, malicious_words(summary))
    why = str(attack.notes[0] if attack.notes else summary.ended).rstrip(".")
    basis = malicious_words(summary) if summary.complete else ""
    because = "" if why == "complete" else f": {why}"
    return Verdict(
        "open",
        "no result" if summary.complete else "not finished",
        f"The attack `{attack.name}` came to no result{because}. That says nothing about safety.",
        basis,
    )


def listed(names: list[str]) -> str:
    """Name the first few, and count the others."""
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
