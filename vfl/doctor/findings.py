"""What the checks found: one line each, in a table on a terminal, as plain lines in a log."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partialmethod

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vfl.errors import CafeError


class Level(StrEnum):
    """How a check ended; a run could still go on after a warning, and `later` is what only the run itself can show."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    LATER = "later"


@dataclass(frozen=True)
class Finding:
    """One check: its name, how it ended, and a sentence (for what failed: what, where, what to do)."""

    check: str
    level: Level
    text: str


@dataclass
class Sheet:
    """The findings about one place, in their order."""

    where: str
    lines: list[Finding] = field(default_factory=list)

    def note(self, level: Level, check: str, text: str) -> None:
        """Add a finding."""
        self.lines.append(Finding(check, level, text))

    ok = partialmethod(note, Level.OK)
    warn = partialmethod(note, Level.WARNING)
    fail = partialmethod(note, Level.FAILED)
    later = partialmethod(note, Level.LATER)

    @contextlib.contextmanager
    def trying(self, check: str) -> Iterator[None]:
        """Note an error that ends the block as a failed check."""
        try:
            yield
        except CafeError as error:
            self.fail(check, str(error))

    def count(self, level: Level) -> int:
        """Return how many checks ended like that."""
        return sum(line.level == level for line in self.lines)


_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILED: "bold red", Level.LATER: "cyan"}


def show_findings(sheets: Sequence[Sheet]) -> None:
    """Print all findings and how many of them are bad."""
    console = Console(highlight=False)
    if console.is_terminal:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for sheet in sheets:
            for line in sheet.lines:
                level = Text(line.level, style=_STYLES[line.level])
                table.add_row(sheet.where, line.check, level, Text(_printable(line.text)))
        console.print(table)
    else:
        for sheet in sheets:
            for line in sheet.lines:
                print(f"{line.level:<8} {sheet.where}: {_printable(line.check)}: {_printable(line.text)}")
    failed, warnings = (sum(sheet.count(level) for sheet in sheets) for level in (Level.FAILED, Level.WARNING))
    counted = f"{failed} failed, {warnings} warning{'' if warnings == 1 else 's'}"
    print(counted if failed or warnings else "nothing is wrong", flush=True)


def _printable(text: str) -> str:
    """Return a text without control characters: some of it comes from other machines."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
