"""One attempt: an attack on recorded transcripts, or in a run of its own, in processes that end with their time."""

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from vfl.audit.budget import Budget
from vfl.audit.findings import read_findings
from vfl.audit.plan import NOT_SHOWN, Planned, attack_words, is_active
from vfl.audit.recording import RUN, Recording, played_config, write_config
from vfl.audit.schema import NONE, Attempt
from vfl.errors import UserError
from vfl.folder.summary import load_summary
from vfl.folder.verdict import verdict
from vfl.folder.words import used_words
from vfl.forkserver import memory_kills
from vfl.local.command import OutOfTimeError, last_words, run_command, run_forked
from vfl.seats import adversary_of

AT_ONCE = max(1, min(2, os.cpu_count() or 1))
"""How many attempts run at a time, each on its share of the cores."""


@dataclass(frozen=True)
class Bench:
    """Where attempts are made: what was recorded, under which defence, and the audit's folder."""

    recording: Recording
    out: Path
    defence: str = NONE
    below: str = "attempts"
    """The folder in the audit's folder that holds those of this bench."""
    rounds: int | None = None
    """How many rounds attacks are shown, the first ones; all by default."""
    changes: tuple[str, ...] = ()
    """What the user changes for all attempts, as in `cafe attack --set`."""

    def folder(self, planned: Planned) -> Path:
        """Return where an attempt's results are."""
        told_of = planned.section.options.get("told")
        told = [f"told-{told_of['name']}" if isinstance(told_of, dict) else "told"] if planned.told else []
        parts = [*(seat.slug for seat in planned.seats), planned.section.name, *told]
        return self.out / self.below / re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(parts))


def make_attempts(
    bench: Bench,
    planned: Sequence[Planned],
    budget: Budget,
    stop: threading.Event,
    *,
    until: float = 1.0,
    later: int = 0,
    begins: Callable[[Planned], None] = lambda _: None,
) -> Iterator[tuple[Planned, Attempt]]:
    """Yield each attempt as it ends; none is left running after an error or Ctrl-C."""
    able = [one for one in planned if not one.refusal]
    for one in planned:
        if one.refusal:
            yield one, _blank(one, bench).model_copy(update={"outcome": "refused", "sentence": _refused(one)})
    waiting = len(able) + later

    def make(one: Planned) -> Attempt:
        with _ONE_RUN if is_active(one.section) else contextlib.nullcontext():
            return make_now(one)

    def make_now(one: Planned) -> Attempt:
        nonlocal waiting
        seconds = budget.share(waiting, until=until, at_once=AT_ONCE)
        waiting -= 1
        if not seconds:
            why = f"The budget was used up before its turn: {NOT_SHOWN}."
            return _blank(one, bench).model_copy(update={"outcome": "not run", "sentence": why})
        begins(one)
        return make_attempt(bench, one, stop, seconds)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            running = {pool.submit(make, one): one for one in able}
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            stop_all = any(not future.done() for future in running)
            if stop_all:
                stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


_ONE_RUN = threading.Lock()
"""One federation at a time: it has as many processes as parties."""


def make_attempt(bench: Bench, planned: Planned, stop: threading.Event, seconds: float) -> Attempt:
    """Let one attack read the transcripts of its seats, or break the protocol in a run, and say what came of it."""
    folder = bench.folder(planned)
    folder.mkdir(parents=True, exist_ok=True)
    made = _blank(planned, bench).model_copy(update={"folder": folder.relative_to(bench.out).as_posix()})
    kills, log = memory_kills(), folder / "log.txt"
    try:
        code = _play(bench, planned, folder, log, stop=stop, seconds=seconds)
    except OutOfTimeError:
        why = f"It was stopped after {seconds:.0f} s, its share of the budget: {NOT_SHOWN}."
        return made.model_copy(update={"outcome": "out of time", "sentence": why, "seconds": seconds})
    if code:
        said = ("The run ended: " if is_active(planned.section) else "") + last_words(log, code, kills).rstrip(".")
        return made.model_copy(update={"outcome": "failed", "sentence": f"{said}: {NOT_SHOWN}."})
    return read_attempt(made, bench, planned)


def _play(bench: Bench, planned: Planned, folder: Path, log: Path, *, stop: threading.Event, seconds: float) -> int:
    """Carry out an attempt in a process of its own and return its exit code; what it says goes to the log."""
    if is_active(planned.section):
        config = played_config(bench.recording.config, planned.adversary, planned.section)
        write_config(config, folder)
        with log.open("wb") as said:
            return run_command(
                ["run", str(folder / RUN), "--out", str(folder), "--fresh", "--quiet"], said, stop, seconds=seconds
            )
    recording = bench.recording
    transcripts = [str(recording.transcripts[seat]) for seat in planned.seats]
    changes = [*recording.trusted, *bench.changes, f"attack={json.dumps(planned.section.model_dump(mode='json'))}"]
    if ":" in planned.section.name:
        changes.append(f"attack.name={planned.section.name}")
    command = ["attack", *transcripts, *_set(changes), "--out", str(folder), "--quiet"]
    command += [] if bench.rounds is None else ["--rounds", str(bench.rounds)]
    threads = max(1, (os.cpu_count() or 1) // AT_ONCE)
    return run_forked(command, log, stop, seconds=seconds, threads=threads)


def read_attempt(made: Attempt, bench: Bench, planned: Planned) -> Attempt:
    """Return what an attack left in its folder."""
    try:
        summary = load_summary(bench.folder(planned))
    except UserError as error:
        return made.model_copy(update={"outcome": "failed", "sentence": f"{error}: {NOT_SHOWN}."})
    found = verdict(summary)
    findings = read_findings(summary, planned, made, topology=bench.recording.config.topology)
    worst = min((STATES.index(one.state) for one in findings), default=None)
    return made.model_copy(
        update={
            "outcome": "done",
            "state": found.state if worst is None else STATES[worst],
            "sentence": found.sentence,
            "seconds": summary.seconds.total,
            "ledger": used_words(summary.attack) if summary.attack.used else "",
            "used": list(map(str, summary.attack.used)),
            "certified": summary.attack.certified,
            "findings": findings,
        }
    )


STATES = ("leaked", "partly", "guess")


def _blank(planned: Planned, bench: Bench) -> Attempt:
    return Attempt(
        adversary=adversary_of(planned.seats),
        attack=planned.section.name,
        options=planned.section.options,
        told=planned.told,
        defence=bench.defence,
    )


def _refused(planned: Planned) -> str:
    said = f"{attack_words(planned.section)} cannot run here: {planned.refusal}; {NOT_SHOWN}."
    if not is_active(planned.section) or any(seat.malicious for seat in planned.seats):
        return said
    return f"{said} Recorded parties followed the protocol; an audit of the config plays one that does not."


def _set(changes: Iterable[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]
