"""Defences tried for real: each in a run of its own against the worst attackers, the best of them against all."""

import itertools
from collections.abc import Sequence

from vfl.audit.attempts import AT_ONCE, Bench
from vfl.audit.budget import LEAST_SECONDS
from vfl.audit.course import Run, attempt_all
from vfl.audit.defending.advice import holds, in_question, may_hold, nothing_to_stop, price, recommend, unmet
from vfl.audit.defending.attackers import Defending, attackers_above, places_of, worst_attackers
from vfl.audit.defending.defences import (
    Candidate,
    all_candidates,
    named_candidate,
    together,
    told_attackers,
    with_candidate,
)
from vfl.audit.judgement import attacker, is_clear
from vfl.audit.plan import NOT_SHOWN, Planned
from vfl.audit.recording import Recording, record, recorded, recorded_config
from vfl.audit.schema import Attempt, Recommendation, Trial
from vfl.config import RunConfig
from vfl.errors import CafeError, UserError
from vfl.files import remove
from vfl.folder.transcript import Transcript
from vfl.sweep.progress import CellsProgress

ALONE = 0.75
"""Up to this share of their time defences meet the worst attackers; the rest is for the best of them against all."""


def try_defences(
    run: Run, config: RunConfig, planned: Sequence[Planned], watch: CellsProgress, *, until: float
) -> Defending | None:
    """Try the defences that the user names, or all that act where a seat learned too much; then say what to do.

    None if no seat did.
    """
    worst = worst_attackers(run, planned)
    if not worst:
        run.audit.recommendation = Recommendation(sentence=nothing_to_stop(run))
        return None
    given = run.wanted.defences
    found = all_candidates(worst) if given is None else list(map(named_candidate, given))
    tried = Defending(config, planned, worst, run.audit.training.rounds, found)
    for number, candidate in enumerate(found):
        _try(run, tried, candidate, watch, until=run.budget.slot(len(found) - number, until=ALONE * until))
    settle(run, tried, watch, until=until)
    left = [one for one in found if _outcome(run, one) == "not run"]
    half = run.budget.half(until=until)  # the other is for slow attacks, and what comes of them
    for candidate in left if run.budget.left(half) >= 2 * LEAST_SECONDS else ():
        run.audit.trials[:] = [one for one in run.audit.trials if one.defence != candidate.label]
        _try(run, tried, candidate, watch, until=half)
    if left:
        settle(run, tried, watch, until=until)
    return tried


def _outcome(run: Run, candidate: Candidate) -> str:
    return next(one.outcome for one in run.audit.trials if one.defence == candidate.label)


def settle(run: Run, tried: Defending, watch: CellsProgress, *, until: float) -> None:
    """Let the cheapest defence that held so far meet all attackers above the limit; if one breaks it, the next does."""
    if run.wanted.defences is None and len(tried.worst) > 1:
        _try_together(run, tried, watch, until=until)
    for trial in in_question(run, tried):
        _meet_all(run, tried, trial, watch, until=until)
        if (holds(trial) and not unmet(run, tried, trial)) or run.budget.left(until) < LEAST_SECONDS:
            break
    run.audit.recommendation = recommend(run, tried)
    run.save()


def forget_recordings(run: Run) -> None:
    """Remove what the tried defences' runs recorded, but for a recommended one's that --resume would go on with."""
    for trial in run.audit.trials:
        if not (trial.defence == run.audit.recommendation.defence and run.audit.recommendation.unmet):
            _forget(run, trial)


def _forget(run: Run, trial: Trial) -> None:
    if trial.folder:
        for path in (run.out / trial.folder / "record").glob("**/transcript"):
            remove(path)


def _try(
    run: Run, tried: Defending, candidate: Candidate, watch: CellsProgress, *, until: float, all_of_them: bool = True
) -> Trial:
    """Run a federation with a defence, attack what was recorded, and return what came of it."""
    before = next((one for one in run.kept_trials if one.defence == candidate.label and _is_settled(one)), None)
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


def _is_settled(trial: Trial) -> bool:
    """Tell whether an earlier process left nothing open: no attacker of a defence that may hold ran out of time."""
    return trial.outcome == "done" and bool(trial.broken_by or not trial.undecided)


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
    taken = {one.folder for one in (*run.kept_trials, *run.audit.trials)}
    numbered = (f"defences/{number:02d}" for number in itertools.count(len(run.audit.trials)))
    trial.folder = next(folder for folder in numbered if folder not in taken)
    watch.plan(1)
    watch.begins(name)
    try:
        recording = _record(run, tried, trial, until=until)
    except CafeError as error:
        trial.outcome = "refused" if error.exit_code == 2 else "failed"
        trial.sentence = str(error).removeprefix(f"{run.out / trial.folder / 'record'}: ")
        watch.ends(name, f"{trial.outcome}: {trial.sentence}")
        return
    trial.training = recording.training
    if trial.training.rounds < tried.rounds:
        trial.outcome = "failed" if recording.summary and recording.summary.withheld else "out of time"
        why = recording.summary.ended if recording.summary and trial.outcome == "failed" else "its time was over"
        trial.sentence = f"It trained for {trial.training.rounds} of {tried.rounds} rounds: {why}."
        watch.ends(name, trial.sentence)
        return
    watch.ends(name, "trained")
    settings = {seat: Transcript(path).setting for seat, path in recording.transcripts.items()}
    worst = tried.against(candidate)
    told, trial.told = told_attackers(candidate, settings, worst)
    against = [*worst, *told]
    bench = Bench(recording, run.out, candidate.label, trial.folder)
    if all_of_them:
        made = attempt_all(run, bench, against, watch, until=until)
    else:
        made = _until_broken(run, bench, _quickest_first(run, against), watch, until=until)
    trial.outcome = "done"
    _judge(trial, made, run.audit.limit)
    trial.undecided = [f"{attacker(one)} ({one.outcome})" for one in made if not one.findings]
    met = set(map(attacker, made))
    trial.undecided += [f"{one.name} (not tried: it was broken already)" for one in against if one.name not in met]
    if not may_hold(trial):
        _forget(run, trial)


def _record(run: Run, tried: Defending, trial: Trial, *, until: float) -> Recording:
    """Run a federation with a trial's defence, every party keeping what it sees."""
    assert run.evidence is not None  # a config's data are there
    config = recorded_config(tried.config, trial.section, rounds=tried.rounds, auxiliary=run.wanted.auxiliary)
    return record(config, run.out / trial.folder / "record", run.evidence.data, run.budget.left(until))


def _meet_all(run: Run, tried: Defending, trial: Trial, watch: CellsProgress, *, until: float) -> None:
    """Let a defence that held so far meet all other attackers above the limit, on the recording that it was tried on.

    Those that broke others come first, then the quickest; the first that breaks it ends the meeting.
    """
    met = {
        *trial.held_against,
        *trial.unclear,
        *(attacker(one) for one in run.audit.attempts if one.defence == trial.defence),
    }
    left = [one for one in attackers_above(run, tried.planned) if one.name not in met]
    if not left or not may_hold(trial):
        return
    recording = _recording(run, tried, trial, until=until)
    if recording is None:
        return
    bench = Bench(recording, run.out, trial.defence, trial.folder)
    worst = set(tried.names)  # who broke others that held against these is likely to break this one
    first = {name for one in run.audit.trials if worst <= set(one.held_against) for name in one.broken_by}
    left = sorted(_quickest_first(run, left), key=lambda one: one.name not in first)
    made = _until_broken(run, bench, left, watch, until=until)
    _judge(trial, made, run.audit.limit)
    if trial.broken_by:
        _forget(run, trial)
    run.save()


def _recording(run: Run, tried: Defending, trial: Trial, *, until: float) -> Recording | None:
    """Return what a trial's run recorded; where an audit that had ended removed it, that of the same run again."""
    config = recorded_config(tried.config, trial.section, rounds=tried.rounds, auxiliary=run.wanted.auxiliary)
    try:
        return recorded(config, run.out / trial.folder / "record")
    except UserError:
        if run.budget.left(until) < LEAST_SECONDS:
            return None
        again = _record(run, tried, trial, until=until)
        return again if again.training.rounds == tried.rounds else None


def _quickest_first(run: Run, against: Sequence[Planned]) -> list[Planned]:
    took = {attacker(one): one.seconds or 0.0 for one in run.audit.attempts if one.defence == run.audit.base}
    return sorted(against, key=lambda one: took.get(one.name, 0.0))


def _until_broken(
    run: Run, bench: Bench, against: Sequence[Planned], watch: CellsProgress, *, until: float
) -> list[Attempt]:
    """Make attempts in this order until one breaks the defence: the next one then has the time of the others."""
    left = list(against)
    made: list[Attempt] = []
    while left and not any(_clearly_above(one, run.audit.limit) for one in made):
        these, left = left[:AT_ONCE], left[AT_ONCE:]
        made += attempt_all(run, bench, these, watch, until=until, later=len(left))
    return made


def _judge(trial: Trial, made: Sequence[Attempt], limit: float) -> None:
    """Note which attackers a defence kept below the limit, which not, and of which that is not clear."""
    for one in made:
        if one.findings:
            kept = is_clear(one, limit)
            came = trial.broken_by if _clearly_above(one, limit) else trial.held_against if kept else trial.unclear
            came.append(attacker(one))
            most = max(finding.beyond for finding in one.findings)
            trial.worst = max(most, trial.worst if trial.worst is not None else most)


def _clearly_above(attempt: Attempt, limit: float) -> bool:
    """Tell whether an attacker was measured above the limit where chance does not explain it."""
    return any(one.beyond > limit and one.state != "guess" for one in attempt.findings)


def _try_together(run: Run, tried: Defending, watch: CellsProgress, *, until: float) -> None:
    """Try the cheapest defences that hold at each place together; where they are broken, the next at that place.

    What holds alone need not hold beside others: a defence at one place changes what is trained, and so what is seen
    at the others.
    """
    before = {one.defence: one for one in run.audit.trials}
    ranked = {
        place: sorted(
            (one for one in tried.candidates if one.places == (place,) and may_hold(before[one.label])),
            key=lambda one: (bool(before[one.label].unclear), price(before[one.label])),
        )
        for place in tried.worst
    }
    while all(ranked.values()):
        best = together([own[0] for own in ranked.values()])
        trial = before.get(best.label) or _try(run, tried, best, watch, until=until, all_of_them=False)
        _meet_all(run, tried, trial, watch, until=until)
        gave_way = trial.broken_by or trial.unclear
        if not gave_way:
            return
        sees = places_of(run, attackers_above(run, tried.planned))
        # one that was told is the coordinator, or a worker
        for place in {sees.get(name, "answers" if name.startswith("worker") else "uploads") for name in gave_way}:
            ranked[place] = ranked.get(place, [])[1:]
