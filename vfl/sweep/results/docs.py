"""Tables in the docs: blocks between two marks, which `cafe results` fills from results that are kept as JSON."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from vfl.errors import UserError
from vfl.files import read_plain, write_atomically, write_text
from vfl.folder.sweep_results import load_results
from vfl.limits import JSON_BYTES
from vfl.sweep.plan import load_plan
from vfl.sweep.results import NUMBERS
from vfl.sweep.results.figures import keep_images
from vfl.sweep.results.kept import commit_of, fitting, keep_results, plans_of, read_results, sizes
from vfl.sweep.results.text import as_markdown

BLOCK = re.compile(r"(?<=<!-- table: )([\w-]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
Grid = list[list[str]]
WIDE = 120
"""Characters in a line of a page."""


def fill_docs(docs: Path, files: Path, kept: Path) -> list[Path]:
    """Write the blocks of all pages anew; return the pages that changed."""
    before = {page: page.read_text(encoding="utf-8") for page in sorted(docs.glob("*.md"))}
    after = {page: filled(text, files, kept) for page, text in before.items()}
    changed = [page for page, text in after.items() if text != before[page]]
    for page in changed:
        write_text(page, after[page])
    return changed


def filled(page: str, files: Path, kept: Path) -> str:
    """Return a page's text with what belongs in its blocks: a table each, and what it was made by."""
    return BLOCK.sub(lambda found: f"{found[1]}{found[2]}{_block(found[1], files, kept)}\n", page)


def keep(source: Path, docs: Path, files: Path, kept: Path) -> list[Path]:
    """Keep what `cafe sweep` or `cafe bench --out` wrote: rows of an experiment, or the table of the block so named."""
    if source.is_dir() and read_results(source / "results.json")["sweep"] in sizes(files):
        keep_pictures(source, files, kept)
        return keep_results(source, files, kept)
    name, tree = _of_sweep(source) if source.is_dir() else (source.stem, _read(source))
    if not any(f"<!-- table: {name} -->" in page.read_text(encoding="utf-8") for page in docs.glob("*.md")):
        raise UserError(f"{source}: is of {name!r}, which is no experiment in {files} and no table of a page in {docs}")
    target = _place(kept, name)
    wanted = _wanted(target) if source.is_dir() else {}
    if wanted:
        tree |= {"table": _by_cell(source, wanted)}
    found = {key: tree[key] for key in KEYS}
    write_text(target, json.dumps(wanted | found, indent=1, ensure_ascii=False) + "\n")
    return [target, *_keep_heatmap(source, name, docs)]


def _keep_heatmap(source: Path, name: str, docs: Path) -> list[Path]:
    """Keep a sweep's table as a picture where a page shows it, as images/heatmap-NAME.png."""
    target = docs / "images" / f"heatmap-{name}.png"
    drawn = source / "heatmap.png"
    shown = any(f"(images/{target.name})" in page.read_text(encoding="utf-8") for page in docs.glob("*.md"))
    if not shown or not drawn.is_file():
        return []
    write_atomically(target, lambda file: file.write_bytes(drawn.read_bytes()))
    return [target]


def _wanted(target: Path) -> dict[str, Any]:
    """Return the `axes` and the numbers (`shows`) that the file of a sweep's table asks for, a line for each cell."""
    tree = json.loads(read_plain(target, JSON_BYTES)) if target.exists() else {}
    return {key: tree[key] for key in ("axes", "shows") if key in tree}


def _by_cell(folder: Path, wanted: dict[str, Any]) -> Grid:
    rows = load_results(folder).model_dump()["rows"]
    shown = [[_shown(key, row.get(key)) for key in wanted["shows"].values()] for row in rows]
    lines = [[row["axes"][axis] for axis in wanted["axes"]] for row in rows]
    return [[*wanted["axes"], *wanted["shows"]], *(line + numbers for line, numbers in zip(lines, shown, strict=True))]


def _shown(key: str, value: Any) -> str:
    if value is None:
        return "–"
    return NUMBERS[key].text(value) if key in NUMBERS else f"`{value}`"


def keep_pictures(source: Path, files: Path, kept: Path) -> None:
    """Keep the images of those runs that figures show."""
    tree = read_results(source / "results.json")
    for plan in plans_of(tree, files, source / "results.json"):
        keep_images(source, plan, fitting(plan, tree), kept)


KEYS = ("command", "commit", "date", "table")
"""What is kept of a table; one that is made of an experiment's rows has other keys."""


def _place(kept: Path, name: str) -> Path:
    return kept / "tables" / f"{name}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = json.loads(read_plain(path, JSON_BYTES))
        lacks = ({"of", "where", "axes", "shows"} if "of" in tree else {*KEYS}) - tree.keys()
        if lacks:
            raise ValueError(f"it lacks {', '.join(sorted(lacks))}")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: is no table that can be kept for the docs ({error})") from None
    return tree


def _block(name: str, files: Path, kept: Path) -> str:
    tree = _read(_place(kept, name))
    if "of" in tree:
        grid, made_by = _chosen(tree, files, kept)
    else:
        grid, made_by = tree["table"], f"{tree['command']}; commit {tree['commit'] or 'unknown'}, {tree['date']}"
    below = textwrap.fill(f"({made_by}.)", WIDE, break_long_words=False, break_on_hyphens=False)
    return f"{as_markdown(grid, numbers=False)}\n\n{below}"


def _chosen(tree: dict[str, Any], files: Path, kept: Path) -> tuple[Grid, str]:
    """Return some numbers of some cells of an experiment whose rows are kept, a line for each cell."""
    path, size = sizes(files)[tree["of"]]
    plan = load_plan(path, size=size)
    rows = fitting(plan, read_results(kept / f"{tree['of']}.json"))
    grid = [[*tree["axes"], *tree["shows"]]]
    for cell in plan.cells:
        if tree["where"].items() <= cell.values.items():
            found = [(NUMBERS[key], rows.get(cell.name, {}).get(key)) for key in tree["shows"].values()]
            texts = ["not run" if value is None else number.text(value) for number, value in found]
            grid.append([*(cell.values[axis] for axis in tree["axes"]), *texts])
    commits = sorted({commit_of(row) for row in rows.values()})
    return grid, f"`cafe sweep {path.as_posix()} --size {size}`; commit {', '.join(commits)}"


def _of_sweep(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the name of a sweep, and its table as it printed it."""
    results = load_results(folder)
    pivot, tree = results.pivot, results.model_dump()
    head = [pivot.row_axis, *pivot.columns, *pivot.price_titles]
    lines = [[line.name, *(entry.text for entry in line.entries), *line.price] for line in pivot.lines]
    commit = ", ".join(sorted({commit_of({**tree, **row}) for row in tree["rows"]}))
    about = {"command": f"`cafe sweep`, {results.sweep}", "commit": commit, "date": tree.get("date")}
    return str(results.sweep), {**about, "table": [head, *lines]}
