"""A finished run for other programs: CSV files, or a run in MLflow."""

import csv
import io
import math
import re
import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from vfl.config import RunConfig
from vfl.errors import UserError, missing_extra
from vfl.files import is_own, write_text
from vfl.folder.schema import flat
from vfl.folder.summary import Summary
from vfl.limits import plain
from vfl.report.folder import RunFolder, read_run

EXPERIMENT = "cafe"
ARTIFACTS = ("summary.json", "report.html", "recovered.png", "photograph_*.png")
LONGEST_PARAMETER, MOST_PARAMETERS, MOST_METRICS = 6000, 100, 1000
"""MLflow's limits: characters, and how many in one call."""

NAMES = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a spreadsheet takes for the beginning of a formula, which may run programs."""

Row = dict[str, Any]


def export_csv(folder: Path, out: Path) -> list[Path]:
    """Write rounds.csv, scores.csv and, for images that were recovered, images.csv; return the paths."""
    run = read_run(folder)
    out.mkdir(parents=True, exist_ok=True)
    tables = {"rounds.csv": rounds(run.summary), "scores.csv": scores(run.summary), "images.csv": images(run)}
    return [_write(out / name, rows) for name, rows in tables.items() if rows]


def rounds(summary: Summary) -> list[Row]:
    """Return a row a round: what is known of training and of how far the attack was."""
    train = summary.train
    rows: dict[int, Row] = {}
    for number, (loss, rate) in enumerate(zip_longest(train.losses, train.rates[: len(train.losses)]), start=1):
        rows[number] = {"round": number, "loss": _known(loss), "learning_rate": _known(rate)}
    for tested in train.evaluations:
        row = rows.setdefault(tested.round, {"round": tested.round})
        row |= {"test_loss": _known(tested.loss), "test_accuracy": _known(tested.accuracy)}
    for step in summary.attack.over_rounds or []:
        row = rows.setdefault(step.round, {"round": step.round})
        row |= step.model_dump(include={"psnr_mean", "r2"}, exclude_unset=True)
    return [rows[number] for number in sorted(rows)]


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def scores(summary: Summary) -> list[Row]:
    """Return every single number that a summary has a place for, but for the config's; no other is passed on."""
    return [{"name": name, "value": value} for name, value in _numbers(summary)]


def _numbers(part: BaseModel, above: str = "") -> Iterator[tuple[str, float]]:
    for name in type(part).model_fields:
        value: Any = getattr(part, name) if name in part.model_fields_set and name != "config" else None
        if isinstance(value, BaseModel):
            yield from _numbers(value, f"{above}{name}.")
            continue
        single = {key: one for key, one in value.items() if _is_name(key)} if isinstance(value, dict) else {"": value}
        for key, one in single.items():
            if _is_number(one):
                yield f"{above}{name}.{key}".rstrip("."), one


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_name(key: Any) -> bool:
    """Tell whether a key of a summary's dictionary is one that a run writes: a worker's number, a package."""
    return isinstance(key, str) and NAMES.fullmatch(key) is not None


def images(run: RunFolder) -> list[Row]:
    """Return a row an image: its PSNR where the truth is known, its certificate and label where the attack has them."""
    if run.kind != "image" or run.x is None:
        return []
    columns = {
        "psnr": run.psnr,
        "certificate": run.certificates,
        "label": run.arrays.get("labels"),
        "label_true": run.arrays.get("labels_true"),
    }
    there = {name: column.tolist() for name, column in columns.items() if column is not None}
    return [
        {"sample": int(run.numbers[n]), **{name: column[n] for name, column in there.items()}}
        for n in range(len(run.x))
    ]


def export_mlflow(folder: Path, uri: str | None) -> str:
    """Log a run to MLflow, in the experiment `cafe`; return where it is."""
    run = read_run(folder)
    try:
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise missing_extra("--to mlflow", "MLflow", "mlflow") from None
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else client.create_experiment(EXPERIMENT)
        made = client.create_run(experiment, run_name=folder.resolve().name).info.run_id
        _log(client, made, run)
    except MlflowException as error:
        raise UserError(f"--to mlflow: {' '.join(str(error).split())}") from None
    return f"run {made} of the experiment {EXPERIMENT} in {uri or get_tracking_uri()}"


def _log(client: Any, made: str, run: RunFolder) -> None:
    from mlflow.entities import Metric, Param

    now = int(time.time() * 1000)
    sections = {key: value for key, value in run.summary.config.whole.items() if key in RunConfig.model_fields}
    named = [(name, value) for name, value in flat(sections) if NAMES.fullmatch(name)]
    config = [Param(name, plain(str(value))[:LONGEST_PARAMETER]) for name, value in named]
    metrics = [Metric(name, value, now, step) for name, value, step in _metrics(run.summary)]
    for start in range(0, len(metrics), MOST_METRICS):
        client.log_batch(made, metrics=metrics[start : start + MOST_METRICS])
    for start in range(0, len(config), MOST_PARAMETERS):
        client.log_batch(made, params=config[start : start + MOST_PARAMETERS])
    for pattern in ARTIFACTS:
        for path in sorted(path for path in run.path.glob(pattern) if is_own(path)):
            client.log_artifact(made, str(path))
    client.set_terminated(made, "FINISHED" if run.summary.complete else "FAILED")


def _metrics(summary: Summary) -> Iterator[tuple[str, float, int]]:
    for row in rounds(summary):
        for name, value in row.items():
            if name != "round" and value is not None:
                yield name, float(value), row["round"]
    for row in scores(summary):
        yield row["name"], float(row["value"]), summary.rounds


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _write(path: Path, rows: Sequence[Row]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    write_text(path, text.getvalue(), newline="")
    return path
