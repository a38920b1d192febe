"""What the benchmarks share: federations to run and to disturb, meters, hot paths, ways to show and save numbers."""

import json
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vfl.config import RunConfig
from vfl.datasets import Data
from vfl.datasets.slices import load_data
from vfl.folder.summary import Summary, load_summary
from vfl.folder.versions import commit
from vfl.local.launch import run_federation


def run_once(config: RunConfig, data: Data | None = None) -> Summary:
    """Run a federation in a folder that goes afterwards; return its summary."""
    with tempfile.TemporaryDirectory(prefix="cafe-bench-") as folder:
        run_federation(config, data or load_data(config), Path(folder))
        return load_summary(Path(folder))


def show_table(
    results: Iterable[Mapping[str, Any]], columns: Mapping[str, str], *notes: str, title: str | None = None
) -> Table:
    """Print a row for each result, its cells filled in as the columns say (`{ratio:.2f}`), and sentences below."""
    console, table = Console(highlight=False), Table(*columns, title=title)
    for result in results:
        table.add_row(*(cell.format_map(result) for cell in columns.values()))
    console.print(table)
    for note in notes:
        console.print(note)
    return table


def save(out: Path | None, numbers: Mapping[str, Any], name: str = "", table: Table | None = None) -> None:
    """Write a benchmark's numbers as JSON, if the user named a file; with its table `cafe results --add` keeps it."""
    if out is None:
        return
    kept: dict[str, Any] = {}
    if table is not None:
        texts = [[str(column.header), *map(str, column.cells)] for column in table.columns]
        kept = {"command": f"`cafe bench {name}`", "commit": commit(), "date": time.strftime("%Y-%m-%d")}
        kept["table"] = [list(line) for line in zip(*texts, strict=True)]
    out.write_text(json.dumps({**kept, **numbers}, indent=1) + "\n", encoding="utf-8")
