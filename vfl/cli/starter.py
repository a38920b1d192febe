"""A config to start from: of the answers to `cafe init`, a commented file that runs."""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vfl.config import RunConfig, parse_config
from vfl.errors import UserError
from vfl.registry import PluginSection

TABLES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
MISSING = {"", "?", "NA", "N/A", "NaN", "nan", "null", "NULL"}
BATCH, MOST_SAMPLES, EPOCHS = 10, 200, (4, 40)
PREFERRED = ("exact", "label_clusters", "label_direction", "output_inversion", "least_squares", "cosine")
"""Which attack is taken of those that can run: the strongest of the seat first."""
WITH_HELP, KNOWN = "inverse_network", 4
"""Where none can run: one that knows some samples already, one in so many."""
SEPARATORS = (",", ";", "\t", "|")
"""What may separate a text file's columns: the one by which its first line has the most."""


@dataclass(frozen=True)
class Answers:
    """What `cafe init` asks."""

    data: str
    """The name of a data set, or a file."""
    label: str | None
    """Of a table: the column to predict."""
    workers: int
    adversary: str
    """coordinator, label_holder, or a worker's number."""
    defence: str


def starter(answers: Answers) -> tuple[str, str]:
    """Return the text of a config that runs, and its attack: the data are loaded, and one is chosen that can run."""
    data = _data_section(answers)
    tree: dict[str, Any] = {
        "seed": 0,
        "adversary": {"worker": int(answers.adversary)} if answers.adversary.isdigit() else answers.adversary,
        "data": data,
        "federation": {"workers": answers.workers, "batch_size": BATCH, "epochs": EPOCHS[0]},
        "model": {"name": "mlp", "hidden": [32]},
        "training": {"lr": 0.0},
        "defence": {"name": answers.defence},
        "attack": {"name": "none"},
    }
    _fit(tree, parse_config(tree, "the answers"))
    return "\n".join(_lines(tree)) + "\n", tree["attack"]["name"]


def _fit(tree: dict[str, Any], config: RunConfig) -> None:
    """Fit samples, batches, the attack and the rounds that it needs to the data, which are loaded for it."""
    from attacker.start import refusal_of
    from vfl.datasets.slices import data_facts
    from vfl.datasets.tables.doubts import QuantityError
    from vfl.plan.workload import needs_of, setting_of
    from worker.defences import defences

    for section in config.defence_of(0):
        defences.build(section)
    try:
        facts = data_facts(config)
    except QuantityError:
        tree["training"]["loss"] = "squared"
        config = parse_config(tree, "the answers")
        facts = data_facts(config)
    samples = min(facts.samples, MOST_SAMPLES)
    if samples < facts.samples and not facts.columns:
        tree["data"]["samples"] = samples
    count = samples if "samples" in tree["data"] else facts.samples
    tree["federation"]["batch_size"] = min(BATCH, max(1, count // 2))
    tree["federation"]["epochs"] = EPOCHS[1]
    for helped in (False, True):
        if helped:
            tree["auxiliary"] = max(10, count // KNOWN)
        config = parse_config(tree, "the answers")
        setting = setting_of(config, data_facts(config))
        seen = setting.seen_by(config)
        names = (WITH_HELP,) if helped else PREFERRED
        able = [name for name in names if refusal_of(PluginSection(name=name), seen) is None]
        if able:
            tree["attack"]["name"] = able[0]
            break
    else:
        del tree["auxiliary"]
    config = parse_config(tree, "the answers")
    per_epoch = math.ceil(count / config.federation.batch_size)
    needed = math.ceil(needs_of(config, setting).rounds / per_epoch)
    tree["federation"]["epochs"] = min(EPOCHS[1], max(EPOCHS[0], needed + 2))


def _data_section(answers: Answers) -> dict[str, Any]:
    path = Path(answers.data)
    kind = TABLES.get(path.suffix.lower())
    if kind is None and path.suffix.lower() == ".npz":
        return {"name": "npz", "path": answers.data}
    if kind is None:
        return {"name": answers.data}
    header = table_header(path)
    label = label_in(header, answers.label or header[-1], answers.data)
    section: dict[str, Any] = {"name": kind, "path": answers.data, "label": label}
    rows = list(_rows(path))[1:] if kind == "csv" else []
    if kind == "csv" and not rows:
        raise UserError(f"{path} has a line with the columns' names, and no rows below it")
    if kind == "csv" and _separator(path) != ",":
        section["separator"] = _separator(path)
    named = next((name for name in header if name != label and _names_rows(name, header, rows)), None)
    if named is not None:
        section["id"] = named
    features = [name for name in header if name not in (label, named)]
    if len(features) < answers.workers:
        besides = f"the label {label!r}" + (f" and {named!r}, which names the rows" if named else "")
        raise UserError(
            f"--workers {answers.workers}: {path} has {len(features)} columns to share among them, besides {besides}"
        )
    section["columns"] = [list(part) for part in _shared(features, answers.workers)]
    if any(value.strip() in MISSING for row in rows for value in row):
        section["missing"] = "indicator"
    return section


def label_in(header: Sequence[str], label: str, data: str) -> str:
    """Return the column to predict, if the table has it."""
    if label not in header:
        raise UserError(f"--label {label}: {data} has the columns {', '.join(header)}")
    return label


def table_header(path: Path) -> list[str]:
    """Return the names of a table's columns."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    if TABLES[path.suffix.lower()] == "parquet":
        from vfl.datasets.tables.file import pyarrow

        return list(pyarrow("parquet").read_schema(path).names)
    header = next(_rows(path), [])
    if len(header) < 2:
        raise UserError(f"{path}: its first line should name at least two columns, separated by commas or semicolons")
    return [name.strip() for name in header]


def _rows(path: Path) -> Iterator[list[str]]:
    """Yield a text file's rows, that of the columns' names first."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from filter(None, csv.reader(file, delimiter=_separator(path)))
    except UnicodeDecodeError:
        raise UserError(f"{path} is not written in UTF-8: save it so, in a spreadsheet as “CSV UTF-8”") from None
    except (OSError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a table: {error}") from None


def _separator(path: Path) -> str:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
    return max(SEPARATORS, key=lambda one: len(next(csv.reader([first], delimiter=one), [])))


def _names_rows(name: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether a column names the rows: no value comes twice; fractions, dates and most counts are features."""
    from vfl.datasets.tables.file import is_measured

    place = header.index(name)
    values = [row[place].strip() for row in rows if len(row) > place]
    if len(values) <= 20 or len({*values}) < len(values):
        return False
    if all(value.isdigit() for value in values):
        return place == 0 or "id" in name.lower()
    return not all(is_measured(value) for value in values if value not in MISSING)


def _shared(names: Sequence[str], parts: int) -> Iterator[Sequence[str]]:
    for part in range(parts):
        yield names[len(names) * part // parts : len(names) * (part + 1) // parts]


COMMENTS = {
    "seed": "the same file and seed give the same numbers",
    "adversary": "who is curious: coordinator, label_holder, {worker: 2}, or a list of these (docs/seats.md)",
    "name": "`cafe list datasets` shows the others",
    "path": "relative to where you call cafe, or to CAFE_DATA",
    "label": "the column that the model predicts; worker 0 holds it",
    "id": "names a row, and is no feature",
    "columns": "which worker holds which columns, worker 0 first: change it to your own parties",
    "auxiliary": "so many whole samples, the first ones, the curious party knows already, and learns from",
    "missing": "a value that is not there is a category of its own; or refuse, or drop",
    "samples": "the first so many of the file",
    "federation": "a round is one batch; an epoch shows every sample once",
    "model": "each worker's part of the network, or your own: package.module:factory (docs/models.md)",
    "training": "lr 0: parameters stay as they are, where attacks are strongest; 0.1 trains (docs/training.md)",
    "defence": "what workers do to what they send: `cafe list defences`",
    "attack": "`cafe list attacks --for THIS_FILE` shows which others can run",
}


def _lines(tree: dict[str, Any]) -> Iterator[str]:
    """Yield the file's lines, each key with what it is for."""
    yield "# Made by `cafe init`. Run it: cafe run THIS_FILE. What it would take: cafe plan THIS_FILE."
    for key, value in tree.items():
        if key != "data":
            yield _line(key, value, "")
            continue
        yield "data:"
        for option, chosen in value.items():
            if option == "columns":
                yield f"  columns:  # {COMMENTS['columns']}"
                yield from (f"    - {_flow(one)}" for one in chosen)
            else:
                yield _line(option, chosen, "  ")


def _line(key: str, value: Any, indent: str) -> str:
    text = f"{indent}{key}: {_flow(value)}"
    return f"{text:<52}  # {COMMENTS[key]}" if key in COMMENTS else text


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False)
    return text.strip().removesuffix("...").strip()
