"""`cafe audit`: record once, attack from every seat, try defences, and say what it comes to."""

import hashlib
import json
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vfl.audit.attempts import Bench, make_attempts
from vfl.audit.budget import Budget
from vfl.audit.evidence import Evidence
from vfl.audit.judgement import attacker, conclude
from vfl.audit.page import FILE as PAGE
from vfl.audit.page import audit_page
from vfl.audit.pdf import write_pdf
from vfl.audit.plan import Planned, check_names, plan_attacks
from vfl.audit.recording import Recording, record, recorded, recorded_config
from vfl.audit.schema import NONE, Attempt, Audit, Untested, load_audit, save_audit
from vfl.config import RunConfig
from vfl.config.places import NONE as NO_DEFENCE
from vfl.errors import InterruptedRunError, UserError, in_words
from vfl.files import write_text
from vfl.folder.transcript import Transcript
from vfl.folder.versions import made_with
from vfl.local.stop import as_ctrl_c
from vfl.seats import Seat
from vfl.sweep.progress import CellsProgress

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CONFIGURED = "as configured"
"""The defence of a config that has one."""
RECORDING, ATTACKS = 0.3, 0.5
"""Which shares of the budget the recording, and it with the attacks, may take where defences follow."""
REPORTS = 0.97
"""From here on what is left of the budget is for the reports."""


@dataclass(frozen=True)
class Wanted:
    """What the user asks of an audit besides the config."""

    budget: float
    limit: float = 0.1
    defences: tuple[Any, ...] | None = None
    """What a config says under `defence`, each; None for all that apply, () for none."""
    attacks: tuple[str, ...] | None = None
    """The attacks to try, by name; None for all."""
    changes: tuple[str, ...] = ()
    """Changes for attacks on a transcript."""
    command: str = ""
    quiet: bool = False
    resume: bool = False


@dataclass
class Run:
    """An audit as it goes on: what is known so far is in the folder at any time."""

    out: Path
    audit: Audit
    budget: Budget
    wanted: Wanted
    seats: list[tuple[Seat, ...]] = field(default_factory=list)
    kept: list[Attempt] = field(default_factory=list)
    """What an earlier process of this audit came to."""
    stop: threading.Event = field(default_factory=threading.Event)
    evidence: Evidence | None = None

    def save(self) -> None:
        """Write down what is known so far."""
        self.audit = self.audit.model_copy(update={"seconds": round(self.budget.used, 1)})
        self.audit = conclude(self.audit, self.seats)
        save_audit(self.out, self.audit)

    def note(self, attempt: Attempt) -> None:
        """Take in an attempt."""
        self.audit.attempts.append(attempt)
        self.save()


def audit_config(config: RunConfig, name: str, out: Path, wanted: Wanted) -> Audit:
    """Audit a federation that is described by a config."""
    tree = config.model_dump(mode="json")
    digest = digest_of(tree)
    audit = Audit(name=name, budget=wanted.budget, limit=wanted.limit, config=tree, digest=digest, seed=config.seed)
    run = _begin(out, audit, wanted, config)

    def work(watch: CellsProgress) -> None:
        recording = _recorded(run, config, watch)
        run.evidence = Evidence.of(config)
        _attack(run, recording, config, watch, until=REPORTS if wanted.defences == () else ATTACKS)

    return _carry_out(run, work)


def audit_transcripts(transcripts: dict[Seat, Path], name: str, out: Path, wanted: Wanted) -> Audit:
    """Audit what parties of a federation recorded, here or elsewhere: no defence can be tried on it."""
    first = Transcript(next(iter(transcripts.values())))
    tree = first.config.model_dump(mode="json")
    audit = Audit(name=name, budget=wanted.budget, limit=wanted.limit, config=tree, digest=digest_of(tree))
    run = _begin(out, audit, wanted, first.config)

    def work(watch: CellsProgress) -> None:
        run.evidence = Evidence.of(first.config)
        recording = Recording(transcripts, first.config)
        _attack(run, recording, first.config, watch, until=REPORTS)

    return _carry_out(run, work)


def digest_of(tree: dict[str, Any]) -> str:
    """Return the SHA-256 of a config in canonical JSON."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _begin(out: Path, audit: Audit, wanted: Wanted, config: RunConfig) -> Run:
    check_names(wanted.attacks or ())
    base = NONE if config.defence == NO_DEFENCE else CONFIGURED
    audit = audit.model_copy(update={"versions": made_with(), "command": wanted.command, "base": base})
    kept: list[Attempt] = []
    spent = 0.0
    if wanted.resume:
        before = load_audit(out)
        if before.digest != audit.digest:
            raise UserError(
                f"--resume: the audit in {out} is of another config; choose another --out, or leave --resume out"
            )
        kept, spent = [one for one in before.attempts if one.outcome in ("done", "refused")], before.seconds
    # A resumed audit has the whole budget again for what is left: what was used is counted on top.
    return Run(out, audit, Budget(wanted.budget + spent, spent), wanted, kept=kept)


def _carry_out(run: Run, work: Any) -> Audit:
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
        if run.audit.attempts:
            run.save()
            write_reports(run.out, run.audit)
    return run.audit


def _is_whole(audit: Audit) -> bool:
    """Tell whether all that could run did: a refusal is an answer, an attack that was cut short is none."""
    outcomes = [one.outcome for one in audit.attempts] + [one.outcome for one in audit.trials]
    return all(outcome in ("done", "refused") for outcome in outcomes)


def write_reports(out: Path, audit: Audit) -> None:
    """Write audit.html and, where fpdf2 is there, audit.pdf."""
    write_text(out / PAGE, audit_page(audit))
    try:
        write_pdf(out, audit)
    except UserError as error:
        print(error, file=sys.stderr)
    except Exception as error:  # a letter that no font has must not cost the audit
        print(f"audit.pdf is not written: {in_words(error)}", file=sys.stderr)


def _recorded(run: Run, config: RunConfig, watch: CellsProgress) -> Recording:
    """Run the federation once, every party keeping what it sees, or take what an earlier process recorded."""
    folder, whole = run.out / "record", recorded_config(config)
    if run.wanted.resume and (folder / "summary.json").exists():
        try:
            return recorded(whole, folder)
        except UserError:
            pass
    watch.plan(1)
    watch.begins("a run in which every party keeps what it sees")
    found = record(whole, folder, run.stop, run.budget.left(RECORDING))
    training = found.training
    cut = training.rounds < training.planned
    words = (
        f"{training.rounds} of {training.planned} rounds, stopped by the budget" if cut else f"{training.rounds} rounds"
    )
    watch.ends("a run in which every party keeps what it sees", words)
    if cut:
        why = f"only the first {training.rounds} were recorded within the budget; what follows may leak more, or less"
        run.audit.untested.append(
            Untested(what=f"rounds after the first {training.rounds} of {training.planned}", why=why)
        )
    return found


def _attack(run: Run, recording: Recording, config: RunConfig, watch: CellsProgress, *, until: float) -> None:
    """Attack the recording from every seat that there is, with all that can be played from it."""
    settings = {seat: Transcript(path).setting for seat, path in recording.transcripts.items()}
    run.seats = [(seat,) for seat in settings]
    planned = plan_attacks(settings, config, run.wanted.attacks)
    run.seats += list(dict.fromkeys(one.seats for one in planned if len(one.seats) > 1 and not one.refusal))
    first = next(iter(settings.values()))
    run.audit = run.audit.model_copy(update={"training": recording.training, "samples": first.samples})
    bench = Bench(recording, run.out, run.audit.base, changes=run.wanted.changes)
    attempt_all(run, bench, planned, watch, until=until)
    if run.evidence is not None:
        update = run.evidence.shown(run.out, [one for one in run.audit.attempts if one.defence == run.audit.base])
        run.audit = run.audit.model_copy(update=update)
    run.save()


def attempt_all(run: Run, bench: Bench, planned: list[Planned], watch: CellsProgress, *, until: float) -> list[Attempt]:
    """Make all attempts that an earlier process has not made; each is written down as it ends."""
    names = {(attacker(one), one.defence): one for one in run.kept}
    there = [(one, names.get((one.name, bench.defence))) for one in planned]
    made = [kept for _, kept in there if kept is not None]
    for before in made:
        run.note(before)
    missing = [one for one, kept in there if kept is None]
    watch.plan(sum(not one.refusal for one in missing))
    trying = make_attempts(bench, missing, run.budget, run.stop, until=until, begins=lambda one: watch.begins(one.name))
    for one, attempt in trying:
        run.note(attempt)
        made.append(attempt)
        if attempt.outcome != "refused":
            watch.ends(one.name, _said(attempt))
    return made


def _said(attempt: Attempt) -> str:
    time = "" if attempt.seconds is None else f" ({attempt.seconds:.1f} s)"
    label = attempt.state if attempt.outcome == "done" else attempt.outcome
    return f"{ {'guess': 'no more than a guess', 'partly': 'partly leaked'}.get(label, label) }{time}"
