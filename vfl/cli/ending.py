"""What follows a run: scores where the truth is known, the report, the closing table."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.config import RunConfig
from vfl.errors import in_words

if TYPE_CHECKING:
    from vfl.datasets import Data
    from vfl.folder.summary import Summary

FILES = ("report.html", "recovered.png", "photograph_*.png", "rows.csv", "summary.json")
"""What people want to open, in a run's folder."""
STYLES = {"leaked": "bold white on red", "partly": "bold black on yellow", "guess": "bold", "open": "bold"}
"""How a verdict looks on a terminal: what leaked in part is as loud as what leaked whole."""


def finish(folder: Path, config: RunConfig, data: "Data | None") -> None:
    """Score a run where there is the truth, and close its journal."""
    from vfl.folder.journal import Journal
    from vfl.referee import score_run

    journal = Journal(folder)
    try:
        if data is not None:
            journal.state("scoring")
            score_run(folder, config, data)
    except Exception as error:
        journal.state("ended", str(in_words(error)))
        raise
    journal.finish()


@contextlib.contextmanager
def reported(folder: Path) -> Iterator[None]:
    """Write the report of what a run leaves in its folder, also if it fails."""
    before = _when_written(folder)
    try:
        yield
    finally:
        if _when_written(folder) != before:
            from vfl.report.main import report_if_possible

            report_if_possible(folder)


def _when_written(folder: Path) -> int | None:
    path = folder / "summary.json"
    return path.stat().st_mtime_ns if path.exists() else None


def show(folder: Path, quiet: bool, as_json: bool) -> None:
    """Print what came of a run."""
    from vfl.folder.summary import load_summary

    if as_json:
        print((folder / "summary.json").read_text(encoding="utf-8"), end="")
    elif not quiet:
        show_summary(load_summary(folder), folder)


def show_summary(summary: "Summary", out: Path) -> None:
    """Print the closing table and the verdict."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from vfl.folder.verdict import untested, verdict
    from vfl.folder.words import numbers_in_words

    console = Console(highlight=False, markup=False)
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    for label, value in numbers_in_words(summary):
        table.add_row(label, Text(value))
    console.print(table)
    found = verdict(summary)
    for text, style in ((found.label.upper(), STYLES[found.state]), (found.sentence, "bold"), (found.basis, "")):
        if text:
            console.print(text, soft_wrap=not console.is_terminal, style=style)
    if untested(summary):
        console.print(untested(summary), soft_wrap=not console.is_terminal, style="bold red")
    files = [path.name for name in FILES for path in sorted(out.glob(name))]
    console.print(f"Everything is in {out}{': ' if files else ''}{', '.join(files)}", soft_wrap=True)
