"""`cafe results`: the page that sets a paper's tables beside ours, from results that are kept as JSON."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweep.cell import Row
from sweep.curves import save_curves
from sweep.file import read_sweep
from sweep.numbers import NUMBERS, Number
from sweep.plan import Plan, load_plan
from sweep.show import as_markdown
from sweep.table import Entry, Rows, Table, pivot
from vfl.config import RunConfig, parse_config
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
    """Keep a sweep's rows of an experiment, where they are as its file has it, beside those kept before."""
    source = sweep / "results.json"
    tree = _read(source)
    name = tree["sweep"]
    plans = {f"{path.stem}-{size}": (path, size) for path in _files(files) for size in read_sweep(path).sizes}
    if name not in plans:
        raise UserError(f"{source}: is of {name!r}, which is no experiment in {files} in one of its sizes")
    path, size = plans[name]
    plan = load_plan(path, size=size)
    target = kept / f"{name}.json"
    rows = _fitting(plan, _read(target)) if target.exists() else {}
    new = _fitting(plan, tree)
    if not new:
        raise UserError(f"{source}: none of its cells has the config that {path} gives it now; run the sweep again")
    about = {"versions": tree["versions"], "machine": tree.get("machine", {})}
    for cell, row in new.items():
        if not row["error"] or cell not in rows:  # a failure does not replace a result
            rows[cell] = row | about
    text = json.dumps({"sweep": name, "rows": list(rows.values())}, indent=1, allow_nan=False) + "\n"
    write_atomically(target, lambda place: place.write_text(text, encoding="utf-8"))
    return target


def write_page(files: Path, kept: Path, page: Path) -> None:
    """Write the page anew."""
    parts = [HEAD.format(kept=kept.as_posix(), files=files.as_posix())]
    for path in _files(files):
        sizes = [size for size in SIZES if size in read_sweep(path).sizes]
        parts += _section(path, sizes, kept) if sizes else []
    text = "\n".join(parts)
    write_atomically(page, lambda target: target.write_text(text, encoding="utf-8"))


def draw_curves(files: Path, kept: Path) -> None:
    """Draw the kept results of each experiment that has an axis to draw them along; the page shows these pictures."""
    for path in _files(files):
        for size in read_sweep(path).sizes:
            plan = load_plan(path, size=size)
            file = kept / f"{plan.name}.json"
            if plan.table.along is not None and file.exists():
                save_curves(file.with_suffix(".png"), plan.name, pivot(plan, _rows(plan, _read(file))))


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
        if plan.table.along is not None and file.exists():
            parts.append(f"![The same numbers along the {plan.table.along}]({file.with_suffix('.png').as_posix()})\n")
    return parts


def _table(plan: Plan, tree: dict[str, Any]) -> list[str]:
    assert plan.paper is not None
    rows = _rows(plan, tree)
    main = pivot(plan, rows)
    shows = plan.paper.shows or {plan.table.value: main.columns}
    grid = [[main.row_axis], *([line.name] for line in main.lines)]
    for number, columns in shows.items():
        _add_columns(grid, _pivot(plan, rows, number), columns, plan, named=len(shows) > 1)
    titles = ", ".join(NUMBERS[number].title for number in shows)
    about = f"{titles}; {len(rows)} of {len(plan.cells)} cells run"
    about += "".join(f"; {where}" for where in dict.fromkeys(map(_made_by, _fitting(plan, tree).values())))
    failed = [f"Failed: {name}: {row.error}\n" for name, row in rows.items() if not row.complete]
    return [as_markdown(grid) + "\n", f"{about}.\n", *failed]


def _pivot(plan: Plan, rows: Rows, number: str) -> Table:
    return pivot(replace(plan, table=plan.table.model_copy(update={"value": number})), rows)


def _add_columns(grid: list[list[str]], table: Table, columns: Sequence[str], plan: Plan, named: bool) -> None:
    """Put some columns of one number beside what the grid has; those of the table's value have the paper's too."""
    assert plan.paper is not None
    printed = plan.paper.numbers if table.number.key == plan.table.value else {}
    for at, column in enumerate(table.columns):
        if column not in columns:
            continue
        grid[0].append(f"{column}: {table.number.title}" if named else column)
        for row, line in zip(grid[1:], table.lines, strict=True):
            row.append(_both(line.entries[at], printed.get(line.name, {}).get(column), table.number))


def _both(entry: Entry, theirs: float | None, number: Number) -> str:
    return entry.text(number) + (f" ({theirs:g})" if theirs is not None and entry.state != "skipped" else "")


def _made_by(row: dict[str, Any]) -> str:
    """Say what a row was made by."""
    versions, machine = row["versions"], row["machine"]
    text = f"cafe-vfl {versions['cafe-vfl']}, torch {versions['torch']}, Python {versions['python']}"
    return text + (f", {machine['cores']} cores ({machine['processor']})" if machine else "")


def _rows(plan: Plan, tree: dict[str, Any]) -> Rows:
    return {
        cell: Row(row["error"], tuple(row["attack.used"]), {key: row.get(key) for key in NUMBERS})
        for cell, row in _fitting(plan, tree).items()
    }


def _fitting(plan: Plan, tree: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of cells whose configs are still those of the file; others count as not run."""
    rows = {row["cell"]: row for row in tree["rows"]}
    return {
        cell.name: rows[cell.name]
        for cell in plan.cells
        if cell.name in rows and _config_of(rows[cell.name]) == cell.config
    }


def _config_of(row: dict[str, Any]) -> RunConfig | None:
    try:
        return parse_config(row["config"], "a kept result")
    except UserError:  # of a release with other keys
        return None


def _read(path: Path) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        whole = all({"cell", "config", "error", "attack.used"} <= row.keys() for row in tree["rows"])
        if not isinstance(tree["sweep"], str) or not whole:
            raise ValueError("a row lacks its cell, config or error")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: is not a sweep's results ({error})") from None
    return tree
