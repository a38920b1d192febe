"""`init`: five questions, or options, and a config that runs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from vfl.cli.starter import TABLES, Answers, starter, table_header
from vfl.errors import UserError

CURIOUS = "coordinator, label_holder, or a worker's number"


def init(
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="A table (.csv, .tsv, .parquet), an .npz file, or a data set's name."),
    ] = None,
    *,
    label: Annotated[str | None, typer.Option(help="Of a table: the column to predict; the last by default.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many workers share the features; 2 by default.")
    ] = None,
    adversary: Annotated[str | None, typer.Option(help=f"Who is curious: {CURIOUS}; coordinator by default.")] = None,
    defence: Annotated[
        str | None, typer.Option(help="What workers do to what they send (`cafe list defences`); none by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("run.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Write over --out, if there is such a file.")] = False,
) -> None:
    """Ask five questions, and write a config with comments that runs; options answer the questions beforehand."""
    if out.exists() and not force:
        raise UserError(f"--out {out}: is there already; choose another name, or --force writes over it")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    asks = data is None and _on_terminal()
    if data is None and not asks:
        raise UserError("cafe init: give DATA, a file or a data set's name; questions are asked on a terminal only")
    data = data or _ask("Which data? A table (.csv, .parquet), an .npz file, or digits, photos, …", "digits")
    is_table = Path(data).suffix.lower() in TABLES
    if label is not None and not is_table:
        raise UserError(f"--label {label}: is for tables, and {data} is none")
    if asks and is_table and label is None:
        header = table_header(Path(data))
        label = _ask(f"Which column is predicted? {', '.join(header)}", header[-1])
    workers = workers or (_number(_ask("How many workers share the features?", "2")) if asks else 2)
    adversary = adversary or (_ask(f"Who is curious? {CURIOUS}", "coordinator") if asks else "coordinator")
    if adversary not in ("coordinator", "label_holder") and not adversary.isdigit():
        raise UserError(f"--adversary {adversary}: choose {CURIOUS}")
    defence = defence or (_ask("Which defence? none, or one of `cafe list defences`", "none") if asks else "none")
    text = starter(Answers(data, label, workers, adversary, defence))
    out.write_text(text, encoding="utf-8")
    print(f"{out} is written; next: cafe run {out}")


def _ask(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default)).strip()


def _number(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise UserError(f"{text}: expected a number of workers, as 2")
    return int(text)


def _on_terminal() -> bool:
    return sys.stdin.isatty()
