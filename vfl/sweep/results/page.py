"""`cafe results`: the page that sets a paper's tables beside ours, from results that are kept as JSON."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

from vfl.errors import UserError
from vfl.files import write_text
from vfl.folder.sweep_results import Place
from vfl.sweep.file import PaperConfig, read_sweep
from vfl.sweep.plan import Plan, load_plan
from vfl.sweep.results import NUMBERS
from vfl.sweep.results.curves import Curves, value_at
from vfl.sweep.results.figures import figure_lines
from vfl.sweep.results.kept import commit_of, experiments, fitting, read_results, rows_of
from vfl.sweep.results.pictures import save_curves
from vfl.sweep.results.table import Rows, Table, pivot
from vfl.sweep.results.text import as_markdown

SIZES = ("paper", "small")
"""What the page shows of each experiment; a smoke test says nothing of science."""

WIDE = 120

HEAD = """# Results

Written by `cafe results` from the files in `{kept}`; every number there is a cell of a `cafe sweep`
over a file in `{files}`. A cell shows ours, with the paper's number in brackets where it prints one. What was
not run at full size says so; nothing is extrapolated. What the mean image scores, a guess without any gradient, is
below a column whose runs have the same images.

**CAFE, tuned.** At size `small` CAFE has settings that go beyond the paper's: `scaled_sgd` (SGD whose rate is
divided by the batch's curvature) in steps I and II; in step III Adam at `lr_three` 0.05 or 0.1 instead of 0.01 or
0.02, falling to 0.02 of itself (`final_three`), and no second derivatives (`alpha` 0). `xi` is Table 9's, but for
the digits ([docs/cafe.md](docs/cafe.md#tuned)). At size `paper` its rates and weights are Table 9's, as printed, but in
the table of learning rates, where it is tuned too. PSNR is of whole images; below a table stands that of each slice on
its own, as the paper's public code prints it, and the MSE.
"""


def write_page(files: Path, kept: Path, page: Path) -> None:
    """Write the page anew."""
    write_text(page, page_text(files, kept, page))


def page_text(files: Path, kept: Path, page: Path) -> str:
    """Return what belongs on the page; its links lead from where the page is."""
    parts = [HEAD.format(kept=kept.as_posix(), files=files.as_posix())]
    for path in experiments(files):
        sizes = [size for size in SIZES if size in read_sweep(path).sizes]
        parts += _section(path, sizes, kept, page) if sizes else []
        parts += figure_lines(path, page.parent / "docs", page)
    return "\n".join(_wrapped(line) for line in "\n".join(parts).split("\n"))


def _wrapped(line: str) -> str:
    """Break a line of text where an editor would; tables, headings and pictures are lines as they are."""
    if len(line) <= WIDE or line.startswith(("|", "#", "![")):
        return line
    return "\n".join(wrap(line, WIDE, break_long_words=False, break_on_hyphens=False))


def draw_curves(files: Path, kept: Path) -> None:
    """Draw the kept results of each experiment that has an axis to draw them along; the page shows these pictures."""
    for path in experiments(files):
        for size in read_sweep(path).sizes:
            plan = load_plan(path, size=size)
            file = kept / f"{plan.name}.json"
            if plan.table.along is not None and file.exists():
                save_curves(file.with_suffix(".png"), plan.name, pivot(plan, rows_of(plan, read_results(file))))


def _section(path: Path, sizes: list[str], kept: Path, page: Path) -> list[str]:
    plans = [load_plan(path, size=size) for size in sizes]
    paper = plans[0].paper
    assert paper is not None
    _check_columns(path, paper, plans)
    parts = [f"## {paper.table}: {paper.title}\n"]
    parts += [f"{paper.note}\n"] if paper.note else []
    for size, plan in zip(sizes, plans, strict=True):
        parts.append(f"**Size `{size}`** (`cafe sweep {path.as_posix()} --size {size}`). {plan.note}".rstrip() + "\n")
        file = kept / f"{plan.name}.json"
        parts += _table(plan, read_results(file) if file.exists() else {"rows": []})
        picture = file.with_suffix(".png")
        if plan.table.along is not None and picture.exists():
            link = Path(os.path.relpath(picture, page.parent)).as_posix()
            parts.append(f"![The same numbers along the {plan.table.along}]({link})\n")
    return parts


def _check_columns(path: Path, paper: PaperConfig, plans: list[Plan]) -> None:
    """Refuse columns that no size of the table has for the number that is to be shown of them."""
    for number, columns in paper.shows.items():
        known = list(dict.fromkeys(column for plan in plans for column in _pivot(plan, {}, number).columns))
        for column in columns:
            if column not in known:
                raise UserError(
                    f"{path}: paper.shows.{number}: there is no column called {column!r}, "
                    f"choose from {' | '.join(known)}"
                )


def _table(plan: Plan, tree: dict[str, Any]) -> list[str]:
    assert plan.paper is not None
    rows = rows_of(plan, tree)
    main = pivot(plan, rows)
    shows = plan.paper.shows or {plan.table.value: main.columns}
    grid = [[main.row_axis], *([line.name] for line in main.lines)]
    for number, columns in shows.items():
        _add_columns(grid, _pivot(plan, rows, number), columns, plan, named=len(shows) > 1)
    grid += _baseline(plan, rows, shows)
    if plan.rounds:
        grid = _over_rounds(plan, rows, shows)
    titles = ", ".join(NUMBERS[number].title for number in shows)
    about = f"{titles}; {len(rows)} of {len(plan.cells)} cells run"
    about += "".join(f"; {where}" for where in dict.fromkeys(map(_made_by, fitting(plan, tree).values())))
    failed = [f"Failed: {name}: {row.error}\n" for name, row in rows.items() if not row.complete]
    beside = [] if plan.rounds else _beside(plan, rows, shows)
    return [as_markdown(grid) + "\n", f"{about}. {main.note}".rstrip() + "\n", *beside, *failed]


def _over_rounds(plan: Plan, rows: Rows, shows: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return a line for each of some rounds, from the curves of the runs in the table's first line."""
    assert plan.paper is not None
    grid = [["round"], *([str(number)] for number in plan.rounds)]
    for key, columns in shows.items():
        table = _pivot(plan, rows, key)
        for column, entry in zip(table.columns, table.lines[0].entries, strict=True):
            if column in columns:
                grid[0].append(f"{column}: {table.number.title}")
                curves = next((rows[name].curves for name in entry.cells if name in rows), None)
                for line, number in zip(grid[1:], plan.rounds, strict=True):
                    line.append(_at(curves, entry, key, number) + _printed(plan, line[0], column, key))
    return grid


def _at(curves: Curves | None, entry: Place, key: str, number: int) -> str:
    if curves is None:
        return entry.text
    value = value_at(curves, key, number)
    return "no value" if value is None else NUMBERS[key].text(value)


def _printed(plan: Plan, row: str, column: str, key: str) -> str:
    assert plan.paper is not None
    theirs = plan.paper.printed(row, column, plan.table.value).get(key)
    return "" if theirs is None else f" ({theirs:g})"


def _beside(plan: Plan, rows: Rows, shows: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the same places with the PSNR of slices, as the paper's public code prints it, and the MSE."""
    slices, errors = (_pivot(plan, rows, key) for key in ("attack.psnr_slices", "attack.mse_mean"))
    columns = [at for at, column in enumerate(slices.columns) if column in shows.get("attack.psnr_mean", ())]
    grid = [[slices.row_axis, *(slices.columns[at] for at in columns)]]
    for line, error in zip(slices.lines, errors.lines, strict=True):
        pairs = [(line.entries[at], error.entries[at]) for at in columns]
        if any(place.value is not None for place, _ in pairs):
            grid.append([line.name, *(_pair(*pair) for pair in pairs)])
    if len(grid) == 1:
        return []
    return ["The same runs, PSNR of slices each on its own (dB), and MSE:\n", as_markdown(grid) + "\n"]


def _pair(slices: Place, error: Place) -> str:
    if slices.value is None or error.value is None:
        return slices.text
    return f"{NUMBERS['attack.psnr_slices'].text(slices.value)}, {error.value:.1e}"


def _pivot(plan: Plan, rows: Rows, number: str) -> Table:
    return pivot(replace(plan, table=plan.table.model_copy(update={"value": number})), rows)


def _add_columns(grid: list[list[str]], table: Table, columns: Sequence[str], plan: Plan, *, named: bool) -> None:
    """Put some columns of one number beside what the grid has, each with what the paper prints for it."""
    assert plan.paper is not None
    for at, column in enumerate(table.columns):
        if column not in columns:
            continue
        grid[0].append(f"{column}: {table.number.title}" if named else column)
        for row, line in zip(grid[1:], table.lines, strict=True):
            printed = plan.paper.printed(line.name, column, plan.table.value).get(table.number.key)
            row.append(_both(line.entries[at], printed))


def _baseline(plan: Plan, rows: Rows, shows: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the row of what guessing the mean image scores, where all runs of a column have the same images."""
    guess, texts = _pivot(plan, rows, "attack.psnr_baseline"), []
    for number, columns in shows.items():
        for column in _pivot(plan, rows, number).columns:
            if column in columns:
                at = guess.columns.index(column) if column in guess.columns and number == "attack.psnr_mean" else None
                known = [] if at is None else [v for line in guess.lines if (v := line.entries[at].value) is not None]
                texts.append(f"{known[0]:.1f}" if known and max(known) - min(known) < 0.05 else "·")
    return [["mean image", *texts]] if set(texts) - {"·"} else []


def _both(entry: Place, theirs: float | None) -> str:
    return entry.text + (f" ({theirs:g})" if theirs is not None and entry.state != "skipped" else "")


def _made_by(row: dict[str, Any]) -> str:
    """Say what a row was made by."""
    versions, machine = row["versions"], row["machine"]
    text = f"cafe-vfl {versions['cafe-vfl']}, torch {versions['torch']}, Python {versions['python']}"
    text += f", commit {commit_of(row)}"
    return text + (f", {machine['cores']} cores ({machine['processor']})" if machine else "")
