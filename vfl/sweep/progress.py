"""The progress of many runs on standard error: a bar on a terminal, a line a cell everywhere."""

import sys
import threading

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from vfl.folder.schema import Number
from vfl.sweep.cell import Row


class CellsProgress:
    """Shows which cells run, which have ended, and how; how many there are may turn out as it goes."""

    def __init__(self, unit: str = "cells", quiet: bool = False) -> None:
        self._unit, self._total, self._quiet = unit, 0, quiet
        self._done = 0
        self._running: list[str] = []
        self._lock = threading.Lock()
        console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        if console.is_terminal and not quiet:
            columns = (TextColumn(unit), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[running]}", markup=False), console=console)
            self._task = self._bar.add_task(unit, total=0, running="")
            self._bar.start()

    def plan(self, more: int) -> None:
        """Take note that there are so many more of them."""
        with self._lock:
            self._total += more
            if self._bar is not None:
                self._bar.update(self._task, total=self._total)

    def kept(self, count: int) -> None:
        """Say how many of them an earlier process has finished."""
        self._done += count
        if count:
            self._say(f"{count} of {self._total} {self._unit} are there already")

    def begins(self, cell: str) -> None:
        """Say that a cell begins; called from the threads that run cells."""
        with self._lock:
            self._running.append(cell)
            self._draw()

    def ends(self, cell: str, words: str) -> None:
        """Say how a cell ended."""
        with self._lock:
            if cell in self._running:  # one that was not begun has no time left
                self._running.remove(cell)
            self._done += 1
            self._say(f"{self._unit.removesuffix('s')} {self._done} of {self._total}  {cell}: {words}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(Text(text))
            self._draw()
        elif not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def _draw(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, running=" | ".join(self._running))


class SweepProgress(CellsProgress):
    """The same for the cells of a sweep, each with the number that the sweep's table shows."""

    def __init__(self, total: int, number: Number, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._number = number
        self.plan(total)

    def ended(self, cell: str, row: Row) -> None:
        """Say how a cell ended, and its number."""
        self.ends(cell, self._words(row))

    def _words(self, row: Row) -> str:
        if not row.complete:
            return f"failed: {row.error}"
        value, seconds = row.numbers[self._number.key], row.numbers["seconds.total"]
        shown = "" if value is None else f"{self._number.label} {self._number.text(value)} {self._number.unit}".strip()
        return ", ".join(part for part in (shown or "done", f"{seconds:.1f} s" if seconds else "") if part)
