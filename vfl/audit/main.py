"""`cafe audit`: record once, attack from every seat, try defences, and say what it comes to."""

import itertools
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vfl.audit.attempts import Bench
from vfl.audit.budget import Budget
from vfl.audit.course import Run, Wanted, attempt_all
from vfl.audit.defending.attackers import worst_attackers
from vfl.audit.defending.defences import named_candidate, with_candidate
from vfl.audit.defending.trials import forget_recordings, settle, try_defences
from vfl.audit.document.page import FILE as PAGE
from vfl.audit.document.page import audit_page
from vfl.audit.document.pdf import write_pdf
from vfl.audit.evidence import Evidence
from vfl.audit.judgement import ROUNDS as CUT
from vfl.audit.judgement import who
from vfl.audit.plan import Planned, is_active, is_slow, plan_attacks
from vfl.audit.recording import Recording, record, recorded, recorded_config
from vfl.audit.schema import NONE, Attempt, Audit, Trial, Untested, digest_of, load_audit
from vfl.audit.soonest import look_for_rounds
from vfl.config import RunConfig, apply_change, parse_config
from vfl.config.places import NONE as NO_DEFENCE
from vfl.config.places import PLACES
from vfl.datasets import Data
from vfl.datasets.slices import load_data
from vfl.errors import InterruptedRunError, UserError, in_words
from vfl.files import write_text
from vfl.folder.recorded_config import without_download
from vfl.folder.transcript import Transcript
from vfl.folder.versions import made_with
from vfl.forkserver import warm_up
from vfl.local.stop import as_ctrl_c
from vfl.seats import Seat, names_of_seats
from vfl.sweep.progress import CellsProgress
from worker.defences import built_for

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CONFIGURED = "as configured"
"""The defence of a config that has one."""
RECORDING, ATTACKS, ROUNDS = 0.3, 0.45, 0.1
"""Which shares of the budget the recording, it with the attacks, and the search for fewer rounds may take."""
REPORTS = 0.95
"""From here on what is left of the budget is for the reports."""
EVERYTHING = 0.9
"""A seat that knows so much of what a guess leaves open is tried with slow attacks last."""


def audit_config(config: RunConfig, name: str, out: Path, wanted: Wanted) -> Audit:
    """Audit a federation that is described by a config."""
    tree = config.model_dump(mode="json")
    digest = digest_of(tree)
    audit = Audit(name=name, budget=wanted.budget, limit=wanted.limit, config=tree, digest=digest, seed=config.seed)
    run = _begin(out, audit, wanted, config)

    def work(watch: CellsProgress) -> None:
        run.evidence = Evidence(load_data(config), config)
        recording = _recorded(run, config, watch, run.evidence.data)
        later = _attack(run, recording, config, watch, until=REPORTS if wanted.defences == () else ATTACKS)
        tried = None if wanted.defences == () else try_defences(run, config, later.planned, watch, until=REPORTS)
        later.attempt(watch, until=REPORTS if tried is None else run.budget.half(until=REPORTS))
        if tried is not None:
            settle(run, tried, watch, until=REPORTS)  # with what came of the slow attacks
            forget_recordings(run)

    return _carry_out(run, work)


def audit_transcripts(transcripts: dict[Seat, Path], name: str, out: Path, wanted: Wanted) -> Audit:
    """Audit what parties of a federation recorded, here or elsewhere: no defence can be tried on it."""
    first = Transcript(next(iter(transcripts.values())))
    tree = first.config.model_dump(mode="json")
    changed = tree | {"data": without_download(tree["data"])}
    for change in wanted.changes:
        apply_change(changed, change)
    here = parse_config(changed, "the recorded config")
    audit = Audit(name=name, budget=wanted.budget, limit=wanted.limit, config=tree, digest=digest_of(tree))
    run = _begin(out, audit, wanted, first.config)

    def work(watch: CellsProgress) -> None:
        run.evidence = Evidence.of(here)
        recording = Recording(transcripts, first.config)
        _attack(run, recording, first.config, watch, until=REPORTS).attempt(watch, until=REPORTS)

    return _carry_out(run, work)


def check_defences(wanted: Wanted, config: RunConfig) -> None:
    """Refuse a defence that there is not, or that cannot act where it is named, with a sentence."""
    for tree in wanted.defences or ():
        tried = recorded_config(config, with_candidate(config, named_candidate(tree)))
        for worker, place in itertools.product(range(config.federation.workers), PLACES):
            for section in tried.defence_of(worker, place):
                if section != NO_DEFENCE:
                    built_for(place, section)


def _begin(out: Path, audit: Audit, wanted: Wanted, config: RunConfig) -> Run:
    base = NONE if config.defence == NO_DEFENCE else CONFIGURED
    audit = audit.model_copy(update={"versions": made_with(), "command": wanted.command, "base": base})
    kept, kept_trials, spent = list[Attempt](), list[Trial](), 0.0
    if wanted.resume:
        before = load_audit(out)
        if before.digest != audit.digest:
            raise UserError(
                f"--resume: the audit in {out} is of another config; choose another --out, or leave --resume out"
            )
        kept, spent = [one for one in before.attempts if one.outcome in ("done", "refused")], before.seconds
        kept_trials = before.trials
        audit = audit.model_copy(update={"budget": spent + wanted.budget})
    return Run(out, audit, Budget(wanted.budget, spent), wanted, kept=kept, kept_trials=kept_trials)


def _carry_out(run: Run, work: Any) -> Audit:
    warm_up(trains=True, attacks=True)
    watch = CellsProgress("steps", run.wanted.quiet)
    try:
        with as_ctrl_c(*STOP_SIGNALS):
            try:
                work(watch)
                run.audit = run.audit.model_copy(update={"ended": True, "complete": _is_whole(run.audit)})
            except KeyboardInterrupt:
                run.stop.set()
                done = sum(one.outcome == "done" for one in run.audit.attempts)
                on = f"what is done is in {run.out}, and --resume goes on from there"
                raise InterruptedRunError(f"stopped with {done} attempts done; {on}") from None
    finally:
        watch.close()
        if run.audit.attempts or run.stop.is_set():  # what was recorded is worth --resume, too
            run.save()
            write_reports(run.out, run.audit)
    return run.audit


def _is_whole(audit: Audit) -> bool:
    """Tell whether all that could run did: a refusal is an answer, an attack that was cut short is none."""
    outcomes = [one.outcome for one in audit.attempts] + [one.outcome for one in audit.trials]
    return all(outcome in ("done", "refused") for outcome in outcomes) and not audit.recommendation.unmet


def write_reports(out: Path, audit: Audit) -> None:
    """Write audit.html and, where fpdf2 is there, audit.pdf."""
    write_text(out / PAGE, audit_page(audit))
    try:
        write_pdf(out, audit)
    except UserError as error:
        print(error, file=sys.stderr)
    except Exception as error:  # a letter that no font has must not cost the audit
        print(f"audit.pdf is not written: {in_words(error)}", file=sys.stderr)


def _recorded(run: Run, config: RunConfig, watch: CellsProgress, data: Data) -> Recording:
    """Run the federation once, every party keeping what it sees, or take what an earlier process recorded."""
    folder, whole = run.out / "record", recorded_config(config, auxiliary=run.wanted.auxiliary)
    if run.wanted.resume and (folder / "summary.json").exists():
        try:
            return recorded(whole, folder)
        except UserError:
            pass
    watch.plan(1)
    watch.begins("a run in which every party keeps what it sees")
    found = record(whole, folder, data, run.budget.left(RECORDING))
    training = found.training
    cut = training.rounds < training.planned
    words = (
        f"{training.rounds} of {training.planned} rounds, stopped by the budget" if cut else f"{training.rounds} rounds"
    )
    watch.ends("a run in which every party keeps what it sees", words)
    if cut:
        why = f"only the first {training.rounds} were recorded within the budget; what follows may leak more, or less"
        run.audit.untested.append(Untested(what=f"{CUT} the first {training.rounds} of {training.planned}", why=why))
    return found


@dataclass(frozen=True)
class _Later:
    """The attacks that take long, from seats that have learned everything already: they could show nothing worse."""

    run: Run
    bench: Bench
    planned: list[Planned]
    """All attacks, those that were made too."""
    left: list[Planned]

    def attempt(self, watch: CellsProgress, *, until: float) -> None:
        """Make them with what is left of the budget until then."""
        attempt_all(self.run, self.bench, self.left, watch, until=until)


def _attack(run: Run, recording: Recording, config: RunConfig, watch: CellsProgress, *, until: float) -> _Later:
    """Attack the recording from every seat that there is, with all that can be played from it."""
    settings = {seat: Transcript(path).setting for seat, path in recording.transcripts.items()}
    run.seats = [(seat,) for seat in settings]
    runs = recording.summary is not None and not config.topology.is_horizontal  # there no party can be malicious
    planned = plan_attacks(settings, config, run.wanted.attacks, runs=runs)
    known_by_name = {names_of_seats(seats): seats for seats in (one.seats for one in planned if not one.refusal)}
    run.seats += [seats for seats in known_by_name.values() if len(seats) > 1 or seats[0].malicious]
    first = next(iter(settings.values()))
    run.audit = run.audit.model_copy(update={"training": recording.training, "samples": first.samples})
    bench = Bench(recording, run.out, run.audit.base, changes=run.wanted.changes)
    quick = [one for one in planned if one.refusal or not is_slow(one)]
    attempt_all(run, bench, quick, watch, until=until)
    known = {who(one.adversary) for one in run.audit.findings if one.beyond >= EVERYTHING and one.what != "labels"}
    slow = [one for one in planned if one not in quick]
    attempt_all(run, bench, [one for one in slow if who(one.seats) not in known], watch, until=until)
    if run.evidence is not None:
        run.audit = run.audit.model_copy(update=run.evidence.shown(run.out, run.audit.attempts))
    run.save()
    worst = [one for own in worst_attackers(run, planned).values() for one in own if not is_active(one.section)]
    look_for_rounds(run, bench, worst, watch, until=min(REPORTS, until + ROUNDS))
    return _Later(run, bench, planned, [one for one in slow if who(one.seats) in known])
