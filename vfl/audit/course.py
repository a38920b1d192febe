"""An audit as it goes on: what the user wants, what is known so far, and how attempts are added to it."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vfl.audit.attempts import Bench, make_attempts
from vfl.audit.budget import Budget
from vfl.audit.evidence import Evidence
from vfl.audit.judgement import attacker, conclude
from vfl.audit.plan import Planned
from vfl.audit.schema import Attempt, Audit, Trial, save_audit
from vfl.registry import PluginSection
from vfl.seats import Seat
from vfl.sweep.progress import CellsProgress


@dataclass(frozen=True)
class Wanted:
    """What the user asks of an audit besides the config."""

    budget: float
    limit: float = 0.1
    defences: tuple[Any, ...] | None = None
    """What a config says under `defence`, each; None for all that apply, () for none."""
    attacks: tuple[PluginSection, ...] | None = None
    """The attacks to try; None for all."""
    auxiliary: int = 0
    """So many samples, the first, are known whole to curious workers and the label holder."""
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
    kept_trials: list[Trial] = field(default_factory=list)
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


def attempt_all(
    run: Run, bench: Bench, planned: list[Planned], watch: CellsProgress, *, until: float, later: int = 0
) -> list[Attempt]:
    """Make all attempts that an earlier process has not made; each is written down as it ends.

    Those that come `later` keep their share of the time.
    """
    names = {(attacker(one), one.defence): one for one in run.kept}
    there = [(one, names.get((one.name, bench.defence))) for one in planned]
    made = [kept for _, kept in there if kept is not None]
    for before in made:
        run.note(before)
    missing = [one for one, kept in there if kept is None]
    watch.plan(sum(not one.refusal for one in missing))
    trying = make_attempts(
        bench, missing, run.budget, run.stop, until=until, later=later, begins=lambda one: watch.begins(one.name)
    )
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
