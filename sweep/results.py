"""`cafe results`: the page that sets a paper's tables beside ours, from results that are kept as JSON."""

import json
import shutil
from pathlib import Path
from typing import Any

from sweep.cell import Row
from sweep.file import read_sweep
from sweep.numbers import NUMBERS, Number
from sweep.plan import Plan, load_plan
from sweep.show import as_markdown
from sweep.table import Entry, Rows, pivot
from vfl.config import parse_config
from vfl.errors import UserError
from vfl.results import write_atomically

SIZES = ("paper", "small")
"""What the page shows of each experiment; a smoke test says nothing of science."""

HEAD = """# Results

Written by `cafe results` from the files in `{kept}`; every number there is a cell of a `cafe sweep` over a file in
`{files}`. A cell shows ours, with the paper's number in brackets where it prints one. What was not run at full
size says so; nothing is extrapolated.
"""


def keep_results(sweep: Path, files: Path, kept: Path) -> Path:
    """Keep what a sweep's folder holds; return the file."""
    source = sweep / "results.json"
    name = _read(source).get("sweep")
    plans = {f"{path.stem}-{size}" for path in _files(files) for size in read_sweep(path).sizes}
    if name not in plans:
        raise UserError(f"{source}: is of {name!r}, which is no experiment in {files} in one of its sizes")
    kept.mkdir(parents=True, exist_ok=True)
    target = kept / f"{name}.json"
    write_atomically(target, lambda path: shutil.copyfile(source, path))
    return target


def write_page(files: Path, kept: Path, page: Path) -> None:
    """Write the page anew."""
    parts = [HEAD.format(kept=kept.as_posix(), files=files.as_posix())]
    for path in _files(files):
        sizes = read_sweep(path).sizes
        parts += _section(path, [size for size in SIZES if size in sizes], kept)
    text = "\n".join(parts)
    write_atomically(page, lambda target: target.write_text(text, encoding="utf-8"))


def _files(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("*.yaml") if read_sweep(path).paper]
    if not found:
        raise UserError(f"{folder}: holds no experiment of a paper")
    return sorted(found, key=lambda path: (len(path.stem), path.stem))  # table2 before table10


def _section(path: Path, sizes: list[str], kept: Path) -> list[str]:
    plans = [load_plan(path, size=size) for size in sizes]
    paper = plans[0].paper
    assert paper is not None
    parts = [f"## {paper.table}: {paper.title}\n"]
    parts += [f"{paper.note}\n"] if paper.note else []
    for size, plan in zip(sizes, plans, strict=True):
        parts.append(f"**Size `{size}`** (`cafe sweep {path.as_posix()} --size {size}`). {plan.note}".rstrip() + "\n")
        file = kept / f"{plan.name}.json"
        parts += _table(plan, _read(file)) if file.exists() else ["Not run.\n"]
    return parts


def _table(plan: Plan, tree: dict[str, Any]) -> list[str]:
    assert plan.paper is not None
    rows = _rows(plan, tree)
    table = pivot(plan, rows)
    printed = plan.paper.numbers
    grid = [[table.row_axis, *table.columns]]
    for line in table.lines:
        theirs = printed.get(line.name, {})
        pairs = zip(line.entries, table.columns, strict=True)
        grid.append([line.name, *(_both(entry, theirs.get(column), table.number) for entry, column in pairs)])
    versions, machine = tree["versions"], tree.get("machine", {})
    about = f"{table.number.title}; {len(rows)} of {len(plan.cells)} cells run"
    about += f"; cafe-vfl {versions['cafe-vfl']}, torch {versions['torch']}, Python {versions['python']}"
    about += f"; {machine['cores']} cores ({machine['processor']})" if machine else ""
    failed = [f"Failed: {name}: {row.error}\n" for name, row in rows.items() if not row.complete]
    return [as_markdown(grid) + "\n", f"{about}.\n", *failed]


def _both(entry: Entry, theirs: float | None, number: Number) -> str:
    return entry.text(number) + (f" ({theirs:g})" if theirs is not None and entry.state != "skipped" else "")


def _rows(plan: Plan, tree: dict[str, Any]) -> Rows:
    """Return the kept rows of cells whose configs are still those of the file; others count as not run."""
    kept = {row["cell"]: row for row in tree["rows"]}
    rows: Rows = {}
    for cell in plan.cells:
        row = kept.get(cell.name)
        if row is not None and parse_config(row["config"], "a kept result") == cell.config:
            numbers: dict[str, float | None] = {key: row.get(key) for key in NUMBERS}
            rows[cell.name] = Row(row["error"], tuple(row["attack.used"]), numbers)
    return rows


def _read(path: Path) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: is not a sweep's results ({error})") from None
    return tree
