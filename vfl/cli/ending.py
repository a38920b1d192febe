"""What follows a run: scores where the truth is known, the report, the closing table."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.config import RunConfig
from vfl.errors import in_words

if TYPE_CHECKING:
    from vfl.datasets import Data


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
    from vfl.folder.results import load_summary
    from vfl.folder.show import show_summary

    if as_json:
        print((folder / "summary.json").read_text(encoding="utf-8"), end="")
    elif not quiet:
        show_summary(load_summary(folder), folder)
