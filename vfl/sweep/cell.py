"""One cell: a `cafe run` in its own process, and the row of results that comes of it."""

import contextlib
import fcntl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import yaml

from vfl.config import RunConfig, parse_config
from vfl.errors import UserError
from vfl.files import write_text
from vfl.folder.summary import load_summary
from vfl.forkserver import memory_kills
from vfl.local.command import last_words, run_command
from vfl.sweep.results import numbers_of
from vfl.sweep.results.curves import Curves, curves_of

CELL = "cell.yaml"
PATIENCE_SECONDS = 5.0
"""How long the last processes of an earlier run of the same cell may take to go away."""


@dataclass(frozen=True)
class Row:
    """How a cell ended, and its numbers; a failed cell has the sentence it failed with."""

    error: str = ""
    used: tuple[str, ...] = ()
    numbers: dict[str, float | None] = field(default_factory=dict)
    commit: str | None = None
    """Of the code that ran it; None where that is not known."""
    curves: Curves = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return not self.error


def run_cell(config: RunConfig, folder: Path, stop: threading.Event | None = None) -> Row:
    """Run a cell to its end; a failure is a row too. `stop` ends it early, with InterruptedRunError."""
    stop, kills = stop or threading.Event(), memory_kills()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _log(folder / "log.txt") as log:
            code = 2
            if _stopped_before(config, folder):
                code = _run(config, folder, log, stop, resume=True)
            if code == 2:  # nothing to go on from, or nothing that is good
                code = _run(config, folder, log, stop)
    except UserError as error:
        return Row(str(error))
    if code:
        return Row(last_words(folder / "log.txt", code, kills))
    return finished(config, folder) or Row(f"the run left no whole summary.json in {folder}")


def finished(config: RunConfig, folder: Path) -> Row | None:
    """Return the row of a cell that an earlier sweep ran to the end with an equal config."""
    try:
        summary = load_summary(folder)
        ran = parse_config(summary.config.whole, "summary.json")
        planned = parse_config(config.model_dump(mode="json"), "the cell")
    except UserError:
        return None
    # The coordinator writes the summary, the referee adds to it: a run may have been killed between the two.
    scored = summary.attack.over_rounds is not None or not (folder / "recovered.npz").exists()
    if ran != planned or not scored or not summary.complete:
        return None
    used, commit = tuple(map(str, summary.attack.used)), summary.versions.get("commit")
    known = str(commit) if commit else None
    return Row(used=used, numbers=numbers_of(summary), commit=known, curves=curves_of(summary))


def _stopped_before(config: RunConfig, folder: Path) -> bool:
    """Tell whether the same cell was stopped after a checkpoint."""
    try:
        same = (folder / CELL).read_text(encoding="utf-8") == _written(config)
    except OSError:
        return False
    return same and any((folder / "checkpoints").glob("checkpoint-*.safetensors"))


def _written(config: RunConfig) -> str:
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    return text


def _run(config: RunConfig, folder: Path, log: IO[bytes], stop: threading.Event, *, resume: bool = False) -> int:
    file = folder / CELL
    write_text(file, _written(config))
    command = ["run", str(file), "--out", str(folder), "--quiet", "--resume" if resume else "--fresh"]
    return run_command(command, log, stop)


@contextlib.contextmanager
def _log(path: Path) -> Iterator[IO[bytes]]:
    """Open a cell's log, empty. All its processes hold the lock, so that two sweeps never share a folder."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with path.open("ab") as log:
        while True:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    where = f"another sweep still runs this cell in {path.parent}"
                    raise UserError(f"{where}: wait for it or stop it, then start again") from None
                time.sleep(0.1)
        log.truncate(0)
        yield log
