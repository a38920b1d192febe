"""Defences tried for real: each in a run of its own against the worst attackers, and which of them to recommend."""

from collections.abc import Sequence
from dataclasses import dataclass

from vfl.audit.attempts import Bench
from vfl.audit.budget import LEAST_SECONDS
from vfl.audit.course import Run, attempt_all
from vfl.audit.defences import (
    Candidate,
    all_candidates,
    named_candidate,
    place_of,
    together,
    told_attackers,
    with_candidate,
)
from vfl.audit.judgement import attacker
from vfl.audit.plan import NOT_SHOWN, Planned
from vfl.audit.recording import record, recorded_config
from vfl.audit.schema import Attempt, Recommendation, Training, Trial
from vfl.config import RunConfig
from vfl.config.places import Place
from vfl.errors import CafeError
from vfl.files import remove
from vfl.folder.transcript import Transcript
from vfl.sweep.progress import CellsProgress

MOST_ATTACKERS = 6
"""A defence meets so many of the attackers that learned too much, the worst of each seat first."""
SINGLE = 0.85
"""Up to this share of the budget defences are tried one by one; the rest is for those of several places together."""


@dataclass(frozen=True)
class Defending:
    """What defences are tried with: the config, the attackers that learned too much, and how far they came."""

    config: RunConfig
    attackers: dict[Place, list[Planned]]
    """By the place where a defence must act to change what they see."""
    rounds: int

    def against(self, candidate: Candidate) -> list[Planned]:
        """Return the attackers whose view a defence changes."""
        return [one for place in candidate.places for one in self.attackers.get(place, ())]

    @property
    def names(self) -> set[str]:
        """Return the names of all attackers."""
        return {one.name for own in self.attackers.values() for one in own}


def try_defences(
    run: Run, config: RunConfig, planned: Sequence[Planned], watch: CellsProgress, *, until: float
) -> None:
    """Try the defences that the user names, or all that act where a seat learned too much; then say what to do."""
    attackers = worst_attackers(run, planned)
    if not attackers:
        run.audit.recommendation = Recommendation(sentence=_nothing_to_stop(run))
        return
    given = run.wanted.defences
    found = all_candidates(attackers) if given is None else list(map(named_candidate, given))
    with_these = Defending(config, attackers, run.audit.training.rounds)
    alone = SINGLE * until if given is None else until
    for number, candidate in enumerate(found):
        _try(run, with_these, candidate, watch, until=run.budget.slot(len(found) - number, until=alone))
    if given is None:
        _try_together(run, with_these, found, watch, until=until)
    run.audit.recommendation = recommend(run, with_these)


def worst_attackers(run: Run, planned: Sequence[Planned]) -> dict[Place, list[Planned]]:
    """Return the attackers that learned more than the limit: for each seat and kind of data the one that knows most."""
    plans, used = {one.name: one for one in planned}, {attacker(one): one.used for one in run.audit.attempts}
    worst: dict[tuple[str, str, str], tuple[float, str]] = {}
    for attempt in run.audit.attempts:
        for finding in attempt.findings if attempt.defence == run.audit.base else ():
            if finding.beyond > run.audit.limit and finding.state != "guess":
                key = (str(finding.adversary), finding.target, finding.what)
                # of equals the one that was made first: attempts are in the order of what finds the worst early
                if key not in worst or finding.beyond > worst[key][0] + 0.02:
                    worst[key] = (finding.beyond, attacker(attempt))
    named = dict.fromkeys(name for _, name in sorted(worst.values(), key=lambda one: -one[0]))
    found: dict[Place, list[Planned]] = {}
    for one in [plans[name] for name in named if name in plans][:MOST_ATTACKERS]:
        found.setdefault(place_of(one.seats, used[one.name]), []).append(one)
    return found


def _try(
    run: Run, tried: Defending, candidate: Candidate, watch: CellsProgress, *, until: float, all_of_them: bool = True
) -> Trial:
    """Run a federation with a defence, attack what was recorded, and return what came of it."""
    before = next((one for one in run.kept_trials if one.defence == candidate.label and one.outcome == "done"), None)
    trial = Trial(defence=candidate.label, section=with_candidate(tried.config, candidate))
    if before is not None:
        for attempt in run.kept:
            if attempt.defence == candidate.label:
                run.note(attempt)
        trial = before
    elif run.budget.left(until) < 2 * LEAST_SECONDS:
        trial.sentence = f"The budget was used up before its turn: {NOT_SHOWN}."
    else:
        _carry_out_trial(run, tried, candidate, trial, watch=watch, until=until, all_of_them=all_of_them)
    run.audit.trials.append(trial)
    run.save()
    return trial


def _carry_out_trial(
    run: Run,
    tried: Defending,
    candidate: Candidate,
    trial: Trial,
    *,
    watch: CellsProgress,
    until: float,
    all_of_them: bool,
) -> None:
    name = f"a run with {candidate.label}"
    folder = run.out / "defences" / f"{len(run.audit.trials):02d}"
    watch.plan(1)
    try:
        config = recorded_config(tried.config, trial.section, rounds=tried.rounds, auxiliary=run.wanted.auxiliary)
        assert run.evidence is not None  # a config's data are there
        watch.begins(name)
        recording = record(config, folder / "record", run.evidence.data, run.budget.left(until))
    except CafeError as error:
        trial.outcome, trial.sentence = "refused" if error.exit_code == 2 else "failed", str(error)
        watch.ends(name, f"{trial.outcome}: {error}")
        return
    trial.training = recording.training
    if trial.training.rounds < tried.rounds:
        trial.outcome = "failed" if recording.summary and recording.summary.withheld else "out of time"
        why = recording.summary.ended if recording.summary and trial.outcome == "failed" else "its time was over"
        trial.sentence = f"It trained for {trial.training.rounds} of {tried.rounds} rounds: {why}."
        watch.ends(name, trial.sentence)
        return
    watch.ends(name, "trained")
    setting = {seat: Transcript(path).setting for seat, path in recording.transcripts.items()}
    told, why = told_attackers(candidate, next(iter(setting.values())))
    against = [*tried.against(candidate), *told]
    bench = Bench(recording, run.out, candidate.label, f"defences/{len(run.audit.trials):02d}")
    if all_of_them:
        made = attempt_all(run, bench, against, watch, until=until)
    else:
        made = _until_broken(run, bench, against, watch, until=until)
    _judge(trial, made, run.audit.limit, why)
    met = set(map(attacker, made))
    trial.undecided += [f"{one.name} (not tried: it was broken already)" for one in against if one.name not in met]
    for path in recording.transcripts.values():
        remove(path)


def _until_broken(
    run: Run, bench: Bench, against: Sequence[Planned], watch: CellsProgress, *, until: float
) -> list[Attempt]:
    """Make attempts, the quickest first, until one breaks the defence: the next one then has the time of the others."""
    took = {attacker(one): one.seconds or 0.0 for one in run.audit.attempts if one.defence == run.audit.base}
    made: list[Attempt] = []
    for one in sorted(against, key=lambda one: took.get(one.name, 0.0)):
        made += attempt_all(run, bench, [one], watch, until=until)
        if _above(made[-1], run.audit.limit):
            break
    return made


def _judge(trial: Trial, made: Sequence[Attempt], limit: float, untold: str) -> None:
    """Note which attackers a defence kept below the limit, and which not."""
    trial.outcome = "done"
    scored = [one for one in made if one.findings]
    trial.worst = max((finding.beyond for one in scored for finding in one.findings), default=None)
    broken = [one for one in scored if _above(one, limit)]
    trial.held_against = [attacker(one) for one in scored if one not in broken]
    trial.broken_by = [attacker(one) for one in broken]
    trial.undecided = [f"{attacker(one)} ({one.outcome})" for one in made if not one.findings]
    trial.told = untold


def _above(attempt: Attempt, limit: float) -> bool:
    """Tell whether an attacker was measured above the limit: also where chance may explain it, nothing is promised."""
    return any(one.beyond > limit for one in attempt.findings)


def _holds(trial: Trial) -> bool:
    """Tell whether all attackers of a trial came to a result, and none above the limit."""
    return trial.outcome == "done" and bool(trial.held_against) and not trial.broken_by and not trial.undecided


def _price(training: Training) -> tuple[float, float, float]:
    """Return what a defence costs, to be compared: accuracy first, or loss where nothing was tested; then time."""
    return (
        -(training.accuracy or 0.0),
        training.loss if training.loss is not None else float("inf"),
        training.seconds or 0.0,
    )


def _try_together(
    run: Run, tried: Defending, found: Sequence[Candidate], watch: CellsProgress, *, until: float
) -> None:
    """Try the cheapest defences that hold at each place together; where they are broken, the next at that place.

    What holds alone need not hold beside others: a defence at one place changes what is trained, and so what is seen
    at the others.
    """
    alone = {one.defence: one for one in run.audit.trials}
    ranked = {
        place: sorted(
            (one for one in found if one.places == (place,) and _holds(alone[one.label])),
            key=lambda one: _price(alone[one.label].training),
        )
        for place in tried.attackers
    }
    sees = {one.name: place for place, own in tried.attackers.items() for one in own}
    while all(ranked.values()):
        best = together([own[0] for own in ranked.values()])
        trial = alone.get(best.label) or _try(run, tried, best, watch, until=until, all_of_them=False)
        if not trial.broken_by:
            return
        for place in {sees.get(name, "uploads") for name in trial.broken_by}:  # one that was told is the coordinator
            ranked[place] = ranked[place][1:]


def recommend(run: Run, tried: Defending) -> Recommendation:
    """Return the cheapest of the defences that keep every seat below the limit, or the sentence that none does."""
    audit = run.audit
    everybody = tried.names
    whole = [one for one in audit.trials if _holds(one) and everybody <= set(one.held_against)]
    limit = f"the limit of {audit.limit:g}"
    if whole:
        best = min(whole, key=lambda one: _price(one.training))
        words = f"{best.defence} keeps every seat below {limit}. Price: {price_words(best.training, audit.training)}."
        told = f" But {best.told}." if best.told else ""
        return Recommendation(
            defence=best.defence,
            section=best.section,
            sentence=f"{words[:1].upper()}{words[1:]} It held against {'; '.join(best.held_against)}.{told}",
        )
    done = [one for one in audit.trials if one.outcome == "done" and one.worst is not None]
    if not done:
        return Recommendation(sentence=f"No defence came to a result within the budget: {NOT_SHOWN}.")
    parts = [_nearest(name, done) for name in everybody]
    return Recommendation(
        sentence=f"None of the {len(done)} defences that were tried keeps every seat below {limit}. "
        + " ".join(sorted(part for part in parts if part))
    )


def _nearest(name: str, done: Sequence[Trial]) -> str:
    """Say of one attacker which defences kept it below the limit, the cheapest first."""
    holding = [one for one in done if name in one.held_against]
    holding.sort(key=lambda one: (bool(one.broken_by), _price(one.training)))
    named = name[:1].upper() + name[1:]
    if holding:
        broken = f", which {' and '.join(holding[0].broken_by)} broke" if holding[0].broken_by else ""
        return f"{named}: held by {holding[0].defence}{broken}."
    return f"{named}: held by none." if any(name in one.broken_by for one in done) else ""


def price_words(after: Training, before: Training) -> str:
    """Say what a defence costs: accuracy, loss, time and bytes beside those without it."""
    parts = []
    if after.accuracy is not None and before.accuracy is not None:
        parts.append(f"accuracy {after.accuracy:.1%} instead of {before.accuracy:.1%}")
    if after.loss is not None and before.loss is not None:
        parts.append(f"loss {after.loss:.3g} instead of {before.loss:.3g}")
    if after.seconds is not None and before.seconds is not None:
        parts.append(f"{after.seconds:.1f} s instead of {before.seconds:.1f} s")
    if before.bytes:
        parts.append(f"{after.bytes / before.bytes - 1:+.0%} on the wire")
    return ", ".join(parts)


def _nothing_to_stop(run: Run) -> str:
    if any(one.findings for one in run.audit.attempts):
        return f"No attack knows more than the limit of {run.audit.limit:g}, so that no defence was tried."
    return ""
