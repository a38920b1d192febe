"""A sweep's progress on standard error: a bar on a terminal, a line a cell everywhere."""

import sys
import threading

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from vfl.folder.schema import Number
from vfl.sweep.cell import Row


class SweepProgress:
    """Shows which cells run, which have ended, and how."""

    def __init__(self, total: int, number: Number, quiet: bool = False) -> None:
        self._total, self._number, self._quiet = total, number, quiet
        self._done = 0
        self._running: list[str] = []
        self._lock = threading.Lock()
        console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        if console.is_terminal and not quiet:
            columns = (TextColumn("cells"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[running]}", markup=False), console=console)
            self._task = self._bar.add_task("cells", total=total, running="")
            self._bar.start()

    def kept(self, count: int) -> None:
        """Say how many cells an earlier sweep has finished."""
        self._done += count
        if count:
            self._say(f"{count} of {self._total} cells are there already")

    def begins(self, cell: str) -> None:
        """Say that a cell begins; called from the threads that run cells."""
        with self._lock:
            self._running.append(cell)
            self._draw()

    def ends(self, cell: str, row: Row) -> None:
        """Say how a cell ended."""
        with self._lock:
            self._running.remove(cell)
            self._done += 1
            self._say(f"cell {self._done} of {self._total}  {cell}: {self._words(row)}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _words(self, row: Row) -> str:
        if not row.complete:
            return f"failed: {row.error}"
        value, seconds = row.numbers[self._number.key], row.numbers["seconds.total"]
        shown = "" if value is None else f"{self._number.label} {self._number.text(value)} {self._number.unit}".strip()
        return ", ".join(part for part in (shown or "done", f"{seconds:.1f} s" if seconds else "") if part)

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(Text(text))
            self._draw()
        elif not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def _draw(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, running=" | ".join(self._running))
