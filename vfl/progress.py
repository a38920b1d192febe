"""Progress for people: a bar on a terminal, plain lines now and then in a log. All of it on standard error."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

LINE_EVERY_SECONDS = 5.0


class Reporter:
    """Shows the steps of a run as they go on."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._quiet = quiet
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last_line = 0.0
        self._said = ("", 0)

    def say(self, text: str) -> None:
        """Say something once."""
        if not self._quiet:
            print(text, file=sys.stderr, flush=True) if self._bar is None else self._bar.console.print(text)

    def step(self, name: str, done: int, total: int, extra: str = "") -> None:
        """Show how far a step has come."""
        if self._quiet:
            return
        if self._console.is_terminal:
            self._draw(name, done, total, extra)
        elif (name, done) != self._said and (done >= total or time.monotonic() - self._last_line >= LINE_EVERY_SECONDS):
            self._last_line, self._said = time.monotonic(), (name, done)
            self.say(f"{name}: {done} of {total}{'  ' + extra if extra else ''}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, name: str, done: int, total: int, extra: str) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description:<12}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[extra]}"),
                console=self._console,
            )
            self._bar.start()
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=total, extra=extra)
        self._bar.update(self._tasks[name], completed=done, total=total, extra=extra)
