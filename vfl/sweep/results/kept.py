"""Results that are kept as JSON beside the experiments: rows of many days, each with what it was made by."""

import json
from pathlib import Path
from typing import Any

from vfl.config import RunConfig, parse_config
from vfl.errors import UserError
from vfl.files import read_plain, write_text
from vfl.limits import JSON_BYTES
from vfl.sweep.cell import Row
from vfl.sweep.file import read_sweep
from vfl.sweep.plan import Plan, load_plan
from vfl.sweep.results import NUMBERS
from vfl.sweep.results.curves import read_curves
from vfl.sweep.results.table import Rows

MADE_BY = ("versions", "machine")
"""What a row says of its making; a sweep's results say it once for all of theirs."""


def keep_results(sweep: Path, files: Path, kept: Path) -> list[Path]:
    """Keep a sweep's rows beside those kept before, in every experiment that has a cell of the same config."""
    source = sweep / "results.json"
    tree = read_results(source)
    return [_keep(plan, tree, kept / f"{plan.name}.json") for plan in plans_of(tree, files, source)]


def plans_of(tree: dict[str, Any], files: Path, source: Path) -> list[Plan]:
    """Return the sweep's own experiment, and those of the same size that have a cell of one of its configs.

    The paper's tables share runs: CAFE with 4 workers and batches of 40 is a cell of five of them.
    """
    name, known = tree["sweep"], sizes(files)
    if name not in known:
        raise UserError(f"{source}: is of {name!r}, which is no experiment in {files} in one of its sizes")
    path, size = known.pop(name)
    own = load_plan(path, size=size)
    ours = tree | {"rows": [*fitting(own, tree).values()]}
    if not ours["rows"]:
        raise UserError(f"{source}: none of its cells has the config that {path} gives it now; run the sweep again")
    others = [load_plan(other, size=size) for other, of in known.values() if of == size]
    return [own, *(plan for plan in others if fitting(plan, ours))]


def _keep(plan: Plan, tree: dict[str, Any], target: Path) -> Path:
    rows = fitting(plan, read_results(target)) if target.exists() else {}
    for cell, row in fitting(plan, tree).items():
        if not row["error"] or cell not in rows or rows[cell]["error"]:  # a failure does not replace a result
            rows[cell] = row
    text = json.dumps({"sweep": plan.name, "rows": list(rows.values())}, indent=1, allow_nan=False) + "\n"
    write_text(target, text)
    return target


def sizes(files: Path) -> dict[str, tuple[Path, str]]:
    """Return every experiment in every size, by the name that its sweep has."""
    return {f"{path.stem}-{size}": (path, size) for path in experiments(files) for size in read_sweep(path).sizes}


def experiments(folder: Path) -> list[Path]:
    """Return the files of the experiments in a folder, in the order that they ask for."""
    places = {path: sweep.paper.place for path in folder.glob("*.yaml") if (sweep := read_sweep(path)).paper}
    if not places:
        raise UserError(f"{folder}: holds no experiment of a paper")
    return sorted(places, key=lambda path: (places[path], path.stem))


def read_results(path: Path) -> dict[str, Any]:
    """Read a sweep's results, or those that are kept; every row then says what it was made by."""
    try:
        tree: dict[str, Any] = json.loads(read_plain(path, JSON_BYTES))
        if not isinstance(tree["sweep"], str):
            raise ValueError("its sweep has no name")
        shared = {key: tree[key] for key in MADE_BY if key in tree}
        tree["rows"] = [_whole(shared | row) for row in tree["rows"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: is not a sweep's results ({error})") from None
    return tree


def _whole(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that has all that is read of it; another is an error."""
    lacks = {"cell", "config", "error", "attack.used", *MADE_BY} - row.keys()
    if lacks:
        raise ValueError(f"a row lacks {', '.join(sorted(lacks))}")
    if not {"cafe-vfl", "torch", "python"} <= row["versions"].keys():
        raise ValueError("a row lacks its versions of cafe-vfl, torch and python")
    if row["machine"] and not {"cores", "processor"} <= row["machine"].keys():
        raise ValueError("a row's machine lacks its cores or processor")
    return row


def commit_of(row: dict[str, Any]) -> str:
    """Return the commit of the code that made a row: its own, or its sweep's where rows do not say it."""
    return str((row["commit"] if "commit" in row else row["versions"].get("commit")) or "unknown")


def rows_of(plan: Plan, tree: dict[str, Any]) -> Rows:
    """Return the rows of a plan's cells that count, for its table."""
    return {
        cell: Row(
            row["error"],
            tuple(row["attack.used"]),
            {key: row.get(key) for key in NUMBERS},
            curves=read_curves(row.get("curves")),
        )
        for cell, row in fitting(plan, tree).items()
    }


def fitting(plan: Plan, tree: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return for each cell the row of its config, whatever it was called then; a cell without one counts as not run."""
    rows = sorted(tree["rows"], key=lambda row: bool(row["error"]))  # of two with one config that which has a result
    made = [(config, row) for row in rows if (config := _config_of(row)) is not None]
    fits: dict[str, dict[str, Any]] = {}
    for cell in plan.cells:
        row = next((row for config, row in made if config == cell.config), None)
        if row is not None:
            fits[cell.name] = {**row, "cell": cell.name, "axes": cell.values}
    return fits


def _config_of(row: dict[str, Any]) -> RunConfig | None:
    try:
        return parse_config(row["config"], "a kept result")
    except UserError:  # of a release with other keys
        return None
