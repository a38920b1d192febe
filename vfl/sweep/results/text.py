"""The table as text: Markdown for a file, columns for a terminal."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from vfl.sweep.results.table import Line, Rows, Table

PRICE_TITLES = ("training loss", "test accuracy", "ms a round", "MB a round")
PRICE_FORMS = (("{:.4f}", 1), ("{:.1f} %", 100), ("{:.3g}", 1e3), ("{:.3g}", 1e-6))
"""How each of PRICE is written, and what it is multiplied by for its unit."""
NOTHING = "–"


def markdown(name: str, table: Table, rows: Rows) -> str:
    """Return the table, the single cells, and the sentences of cells that failed, as Markdown."""
    parts = [f"# {name}: {table.number.title}"]
    if table.lines:
        parts.append(as_markdown(grid(table)))
    if table.singles:
        singles = [[cell, entry.text] for cell, entry in table.singles]
        parts.append(as_markdown([["cell", table.number.title], *singles]))
    parts += notes(table)
    failed = [f"- {_plain(cell)}: {_plain(row.error)}" for cell, row in rows.items() if not row.complete]
    if failed:
        parts.append("\n".join(["Failed:", "", *failed]))
    return "\n\n".join(parts) + "\n"


def as_markdown(grid: list[list[str]], *, numbers: bool = True) -> str:
    """Return a grid of texts, the header first, as a Markdown table; numbers stand to the right."""
    header, *body = grid
    return "\n".join(
        [_line(header), _line(["---", *["---:" if numbers else "---"] * (len(header) - 1)]), *map(_line, body)]
    )


def print_table(table: Table) -> None:
    """Print the table on standard output."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # a log has room
    shown = RichTable(title=Text(table.number.title), title_justify="left")
    header, *body = grid(table) if table.lines else [["cell", table.number.title]]
    body += [[cell, entry.text, *[""] * (len(header) - 2)] for cell, entry in table.singles]
    for number, title in enumerate(header):
        shown.add_column(Text(title), justify="right" if number else "left")
    for line in body:
        shown.add_row(*map(Text, line))
    console.print(shown)
    for note in notes(table):
        console.print(Text(note))


def grid(table: Table) -> list[list[str]]:
    """Return the table as text, the header first."""
    several = len(table.columns) > 1
    header = [table.row_axis, *table.columns]
    header += [table.best_title] if several else []
    header += PRICE_TITLES if table.priced else ()
    lines = [header]
    for line in table.lines:
        texts = [line.name, *(entry.text for entry in line.entries)]
        if several:
            texts.append(f"{table.number.text(line.best.value)} ({line.best.column})" if line.best else NOTHING)
        if table.priced:
            texts += price_texts(line)
        lines.append(texts)
    return lines


def notes(table: Table) -> list[str]:
    """Return what a reader must know besides."""
    found = [table.note] if table.note else []
    if table.baseline is not None:
        found.append(f"Guessing the mean image scores {table.number.text(table.baseline)} {table.number.unit}.")
    if table.priced:
        found.append(
            "Training loss (mean of the last 5 % of the rounds), test accuracy, time and traffic are those of the "
            "cells without an attack."
        )
    return found


def price_texts(line: Line) -> list[str]:
    """Return what training costs in a row."""
    priced = zip(PRICE_FORMS, line.price, strict=True)
    return [NOTHING if value is None else form.format(value * factor) for (form, factor), value in priced]


def _line(texts: list[str]) -> str:
    return "| " + " | ".join(map(_plain, texts)) + " |"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
