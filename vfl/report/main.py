"""Writing report.html: of a run's folder, or of a sweep's with those of its cells."""

import sys
from pathlib import Path

from vfl.errors import in_words
from vfl.files import write_text

FILE = "report.html"


def write_report(folder: Path) -> Path:
    """Write the report of a run or of a sweep; return its path."""
    from vfl.folder.sweep_results import RESULTS
    from vfl.report.sweep import sweep_page, unreported

    if (folder / RESULTS).exists() and not (folder / "summary.json").exists():
        for cell in unreported(folder):
            write_report(cell)
        text = sweep_page(folder)
    else:
        from vfl.report.page import run_page

        text = run_page(folder)
    path = folder / FILE
    write_text(path, text)
    return path


def report_if_possible(folder: Path) -> None:
    """Write the report at the end of a run; a sentence says so if that fails, and the results stay as they are."""
    try:
        write_report(folder)
    except Exception as error:
        words = in_words(error)
        print(f"no report: {words}; the results are in {folder}, and `cafe report` tries again", file=sys.stderr)
