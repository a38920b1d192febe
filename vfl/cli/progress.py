"""A run's progress on standard error: a live view on a terminal, plain lines in a log."""

import sys
import time
from pathlib import Path

from rich.console import Console

from vfl.cli.live import Screen
from vfl.folder.journal import Line, Tail
from vfl.folder.lookout import Lookout

LINE_EVERY_SECONDS = 5.0


class RunProgress(Lookout):
    """Follows a run's journal, in a thread, for as long as the block lasts."""

    def __init__(self, out: Path, workers: int, quiet: bool = False) -> None:
        super().__init__()
        self._tail = Tail(out)
        console = Console(stderr=True, highlight=False)
        self.live = not quiet and sys.stderr.isatty() and not console.is_dumb_terminal
        """Whether a live view is on the user's terminal."""
        self._shown: Screen | _Lines | None = Screen(console, workers) if self.live else None if quiet else _Lines()

    def say(self, text: str) -> None:
        """Say something that is not in the journal."""
        if self._shown:
            self._shown.say(text)

    def look(self) -> None:
        """Show what is new in the journal."""
        if self._shown:
            for line in self._tail.read():
                self._shown.take(line)
            self._shown.draw()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._shown:
            self._shown.close()
        self._tail.close()


class _Lines:
    """Plain lines, for a pipe or a log."""

    def __init__(self) -> None:
        self._last, self._said = 0.0, ("", 0)

    def take(self, line: Line) -> None:
        """Write a line if it is time for one, or the last of its kind."""
        if line["kind"] == "say":
            self.say(line["text"])
        elif line["kind"] == "round":
            self._step("rounds", line["round"], line["total"], f"  loss {line['loss']:.4f}")
        elif line["kind"] == "step":
            self._step(line["name"], line["done"], line["total"])

    def draw(self) -> None:
        """Do nothing: lines are written as they come."""

    def say(self, text: str) -> None:
        """Write a sentence."""
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Do nothing: the terminal is as it was."""

    def _step(self, name: str, done: int, total: int, extra: str = "") -> None:
        due = done >= total or time.monotonic() - self._last >= LINE_EVERY_SECONDS
        if due and (name, done) != self._said:
            self._last, self._said = time.monotonic(), (name, done)
            self.say(f"{name}: {done} of {total}{extra}")
