"""A run's journal: what happens, one JSON object a line, for the live view, the live page, and for later.

Every line has `t` (Unix seconds) and `kind`; docs/terminal.md lists the kinds. The coordinator writes it, and so
does the referee. Rounds and steps are written a few times a second at most, and the last of them always.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from vfl.config import RunConfig
from vfl.files import refuse_irregular
from vfl.limits import JOURNAL_BYTES, LINE_BYTES

NAME = "journal.jsonl"
STARTING = "starting.jsonl"
"""The journal of a run that may still be refused, beside the results of the one before."""
VERSION = 1
EVERY_SECONDS = 0.2
"""The least time between two lines of rounds, or of one step."""

State = Literal["waiting", "running", "paused", "attacking", "scoring", "ended"]
WorkerState = Literal["joined", "lost", "rejoined", "withheld", "done"]
Line = dict[str, Any]


class Journal:
    """Appends to the journal of a run's folder; the file is made with the first line."""

    def __init__(self, out: Path) -> None:
        self._path = out / NAME
        self._file: BinaryIO | None = None
        self._waiting: tuple[str, Callable[[], Line]] | None = None
        """The last line that was held back, and what it is about."""
        self._written: dict[str, float] = {}

    def run(self, config: RunConfig, samples: int, planned_rounds: int) -> None:
        """Write what the run is, once that is known."""
        topology = config.topology
        self._write(
            "run",
            version=VERSION,
            config=config.model_dump(mode="json"),
            seed=config.seed,
            workers=topology.workers,
            label_holder=None if topology.is_horizontal else topology.label_holder,
            batch_size=config.federation.batch_size,
            samples=samples,
            planned_rounds=planned_rounds,
        )

    def state(self, state: State, reason: str | None = None) -> None:
        """Write what the run is at now."""
        self._write("state", state=state, **({} if reason is None else {"reason": reason}))

    def worker(self, worker: int, state: WorkerState) -> None:
        """Write what has become of a worker."""
        self._write("worker", id=worker, state=state)

    def round(self, number: int, total: int, *, loss: float, rate: float, traffic: Callable[[], Line]) -> None:
        """Write a finished round, with its learning rate; `traffic` returns the bytes so far, in all and by worker."""
        self._hold("round", lambda: {"round": number, "total": total, "loss": loss, "rate": rate, **traffic()})

    def evaluation(self, number: int, loss: float, accuracy: float) -> None:
        """Write what the model does on test samples after a round."""
        self._write("evaluation", round=number, loss=loss, accuracy=accuracy)

    def step(self, name: str, done: int, total: int) -> None:
        """Write how far a step of the attack has come."""
        self._hold("step", lambda: {"name": name, "done": done, "total": total}, name)

    def estimate(
        self, number: int | None, file: str, *, samples_done: int, psnr_mean: float | None, share_30db: float | None
    ) -> None:
        """Write that the attack has an estimate, after a round or in the middle of its recovery, and how good it is."""
        self._write(
            "estimate", round=number, file=file, samples_done=samples_done, psnr_mean=psnr_mean, share_30db=share_30db
        )

    def say(self, text: str) -> None:
        """Write a sentence for people."""
        self._write("say", text=text)

    def finish(self) -> None:
        """Write that summary.json is final and the run over, and let go of the file."""
        self._write("summary")
        self.state("ended")
        self.close()

    def close(self) -> None:
        """Write what was held back, and let go of the file."""
        self._flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _hold(self, kind: str, make: Callable[[], Line], about: str = "") -> None:
        if self._waiting is not None and self._waiting[0] != f"{kind} {about}":
            self._flush()
        self._waiting = (f"{kind} {about}", lambda: {"kind": kind, **make()})
        if time.monotonic() - self._written.get(self._waiting[0], 0.0) >= EVERY_SECONDS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting is not None:
            about, make = self._waiting
            self._waiting = None
            self._written[about] = time.monotonic()
            self._append(make())

    def _write(self, kind: str, **values: Any) -> None:
        self._flush()
        self._append({"kind": kind, **values})

    def _append(self, line: Line) -> None:
        finite = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}
        text = json.dumps({"t": round(time.time(), 3), **finite})
        with contextlib.suppress(OSError):  # no run is lost for want of its journal; other files tell of a full disk
            if self._file is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
                self._file = os.fdopen(os.open(self._path, flags, 0o666), "ab", buffering=0)
            self._file.write(text.encode() + b"\n")  # in one piece: another process may append too


class StartingJournal(Journal):
    """The journal of a run that may still be refused: a file of its own until `take_place`, and none if it is."""

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        self._place, self._path = self._path, out / STARTING
        self._path.unlink(missing_ok=True)  # of a run that was killed

    def take_place(self) -> None:
        """Put what is written so far in the place of the journal of the run before."""
        if self._path != self._place and self._file is not None:
            with contextlib.suppress(OSError):
                self._path.replace(self._place)
        self._path = self._place

    def close(self) -> None:
        """Write what was held back, and let go of the file; of a run that was refused there is none afterwards."""
        super().close()
        if self._path != self._place:
            self._path.unlink(missing_ok=True)


def _parsed(text: bytes) -> Line | None:
    """Return a line; None for what is none, such as one cut in two when a machine stopped."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


@dataclass(frozen=True)
class Mark:
    """How far a journal was at a moment: which file it was, and its size. Clocks may jump, files do not shrink."""

    file: int = 0
    size: int = 0

    @classmethod
    def now(cls, out: Path) -> "Mark":
        """Return the mark of a folder's journal as it is."""
        found = _stat(out / NAME)
        return cls() if found is None else cls(found.st_ino, found.st_size)


class Tail:
    """Reads the lines that are appended to a journal from now on, also when another run begins the file anew."""

    def __init__(self, out: Path, from_start: bool = False, *, after: Mark = Mark()) -> None:  # noqa: B008
        """Begin at the journal's end, at its start, or where the file that it was at a mark ended then."""
        self._path, self._starting = out / NAME, out / STARTING
        self._file: BinaryIO | None = None
        self._opened_starting = False
        self._rest = b""
        self._skips = False
        """Whether what comes belongs to a line that is too long, and left out."""
        self._open()
        if self._file is not None and not from_start:
            self._file.seek(0, 2)
        elif self._file is not None and os.fstat(self._file.fileno()).st_ino == after.file:
            self._file.seek(after.size)

    def read(self) -> list[Line]:
        """Return the lines that have come since the last call; of very many the first, and the others the next time."""
        lines, all_of_it = self._complete()
        if all_of_it and self._replaced():
            self.close()
            self._open()
            lines += self._complete()[0]
        return lines

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._rest, self._skips = b"", False

    def _open(self) -> None:
        for path in (self._starting, self._path):
            try:
                refuse_irregular(path, links=False)
                self._file, self._opened_starting = path.open("rb"), path == self._starting
                return
            except OSError:
                self._file = None

    def _complete(self) -> tuple[list[Line], bool]:
        """Return whole lines, and whether there are no more for now."""
        if self._file is None:
            return [], True
        come = self._file.read(JOURNAL_BYTES)
        *whole, self._rest = (self._rest + come).split(b"\n")
        if whole and self._skips:
            del whole[0]
            self._skips = False
        if self._skips or len(self._rest) > LINE_BYTES:
            self._rest, self._skips = b"", True
        found = (_parsed(text) for text in whole if len(text) <= LINE_BYTES)
        return [line for line in found if line is not None], len(come) < JOURNAL_BYTES

    def _replaced(self) -> bool:
        there = _stat(self._starting) or _stat(self._path)
        if there is None or self._file is None:
            return there is not None
        here = os.fstat(self._file.fileno())
        if self._opened_starting and not here.st_nlink and _stat(self._starting) is None:
            return False  # the run was refused, and what is there is the one before
        return not os.path.samestat(there, here)  # the file in hand is open, so no other has its number


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
