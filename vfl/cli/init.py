"""`init`: five questions, or options, and a config that runs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from vfl.cli.options import defence_names
from vfl.cli.starter import TABLES, Answers, label_in, starter, table_header
from vfl.errors import UserError

T = TypeVar("T")
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
    adversary: Annotated[
        str | None,
        typer.Option(
            help=f"Who is curious: {CURIOUS}; coordinator by default.",
            autocompletion=lambda: ["coordinator", "label_holder"],
        ),
    ] = None,
    defence: Annotated[
        str | None,
        typer.Option(
            help="What workers do to what they send (`cafe list defences`); none by default.",
            autocompletion=defence_names,
        ),
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
    data = data or _ask("Which data? A table (.csv, .parquet), an .npz file, or digits, photos, …", "digits", _data)
    is_table = Path(data).suffix.lower() in TABLES
    if label is not None and not is_table:
        raise UserError(f"--label {label}: is for tables, and {data} is none")
    if asks and is_table and label is None:
        header = table_header(Path(data))
        asked = f"Which column is predicted? {', '.join(header)}"
        label = _ask(asked, header[-1], lambda name: label_in(header, name, data))
    if workers is None:
        workers = _ask("How many workers share the features?", "2", _number) if asks else 2
    if adversary is not None:
        _curious(adversary)
    elif asks:
        adversary = _ask(f"Who is curious? {CURIOUS}", "coordinator", _curious)
    if defence is None and asks:
        defence = _ask("Which defence? none, or one of `cafe list defences`", "none", _defence)
    text, attack = starter(Answers(data, label, workers, adversary or "coordinator", defence or "none"))
    out.write_text(text, encoding="utf-8")
    if attack == "none":
        print(f"No attack can run from that seat; `cafe list attacks --for {out}` says what each lacks.")
    print(f"{out} is written; next: cafe run {out}")


def _ask(question: str, default: str, taken: Callable[[str], T]) -> T:
    """Ask until the answer can be taken; of one that cannot the reason is said."""
    while True:
        try:
            return taken(str(typer.prompt(question, default=default)).strip())
        except UserError as error:
            print(error)


def _data(text: str) -> str:
    suffix = Path(text).suffix.lower()
    if suffix in TABLES:
        table_header(Path(text))
    elif suffix != ".npz":
        from vfl.datasets import datasets

        datasets.find(text)
    return text


def _number(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise UserError(f"{text}: expected a number of workers, as 2")
    return int(text)


def _curious(text: str) -> str:
    if text not in ("coordinator", "label_holder") and not text.isdigit():
        raise UserError(f"--adversary {text}: choose {CURIOUS}")
    return text


def _defence(text: str) -> str:
    from worker.defences import defences

    defences.find(text)
    return text


def _on_terminal() -> bool:
    return sys.stdin.isatty()
