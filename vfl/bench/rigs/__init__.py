"""What the benchmarks share: federations to run and to disturb, meters, hot paths, ways to show and save numbers."""

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vfl.config import RunConfig
from vfl.datasets import Data
from vfl.datasets.slices import load_data
from vfl.folder.summary import Summary, load_summary
from vfl.local.launch import run_federation


def run_once(config: RunConfig, data: Data | None = None) -> Summary:
    """Run a federation in a folder that goes afterwards; return its summary."""
    with tempfile.TemporaryDirectory(prefix="cafe-bench-") as folder:
        run_federation(config, data or load_data(config), Path(folder))
        return load_summary(Path(folder))


def show_table(
    results: Iterable[Mapping[str, Any]], columns: Mapping[str, str], *notes: str, title: str | None = None
) -> None:
    """Print a row for each result, its cells filled in as the columns say (`{ratio:.2f}`), and sentences below."""
    console, table = Console(highlight=False), Table(*columns, title=title)
    for result in results:
        table.add_row(*(cell.format_map(result) for cell in columns.values()))
    console.print(table)
    for note in notes:
        console.print(note)


def save(out: Path | None, numbers: object) -> None:
    """Write a benchmark's numbers as JSON, if the user named a file."""
    if out is not None:
        out.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
