"""A finished run for other programs: CSV files, or a run in MLflow."""

import csv
import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vfl.errors import UserError
from vfl.files import is_own, write_text
from vfl.report.folder import RunFolder, read_run

EXPERIMENT = "cafe"
ARTIFACTS = ("summary.json", "report.html", "recovered.png", "photograph_*.png")
LONGEST_PARAMETER, MOST_PARAMETERS, MOST_METRICS = 6000, 100, 1000
"""MLflow's limits: characters, and how many in one call."""

Row = dict[str, Any]


def export_csv(folder: Path, out: Path) -> list[Path]:
    """Write rounds.csv, scores.csv and, for images that were recovered, images.csv; return the paths."""
    run = read_run(folder)
    out.mkdir(parents=True, exist_ok=True)
    tables = {"rounds.csv": rounds(run.summary), "scores.csv": scores(run.summary), "images.csv": images(run)}
    return [_write(out / name, rows) for name, rows in tables.items() if rows]


def rounds(summary: dict[str, Any]) -> list[Row]:
    """Return a row a round: what is known of training and of how far the attack was."""
    train, rates = summary["train"], summary["train"].get("rates") or []
    rows = {
        number: {"round": number, "loss": loss, "learning_rate": rates[number - 1] if number <= len(rates) else None}
        for number, loss in enumerate(train.get("losses") or [], start=1)
    }
    for tested in train.get("evaluations") or []:
        row = rows.setdefault(tested["round"], {"round": tested["round"]})
        row |= {"test_loss": tested.get("loss"), "test_accuracy": tested.get("accuracy")}
    for at in summary["attack"].get("over_rounds") or []:
        row = rows.setdefault(at["round"], {"round": at["round"]})
        row |= {name: value for name, value in at.items() if name in ("psnr_mean", "r2")}
    return [rows[number] for number in sorted(rows)]


def scores(summary: dict[str, Any]) -> list[Row]:
    """Return every single number of the summary, but for the config's."""
    numbers = {key: value for key, value in summary.items() if key != "config"}
    return [
        {"name": name, "value": value}
        for name, value in _flat(numbers)
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


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
    return [{"sample": n, **{name: column[n] for name, column in there.items()}} for n in range(len(run.x))]


def export_mlflow(folder: Path, uri: str | None) -> str:
    """Log a run to MLflow, in the experiment `cafe`; return where it is."""
    run = read_run(folder)
    try:
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise UserError("--to mlflow: MLflow is not installed; pip install 'cafe-vfl[mlflow]'") from None
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
    config = [Param(name, str(value)[:LONGEST_PARAMETER]) for name, value in _flat(run.summary["config"])]
    metrics = [Metric(name, value, now, step) for name, value, step in _metrics(run.summary)]
    for start in range(0, len(metrics), MOST_METRICS):
        client.log_batch(made, metrics=metrics[start : start + MOST_METRICS])
    for start in range(0, len(config), MOST_PARAMETERS):
        client.log_batch(made, params=config[start : start + MOST_PARAMETERS])
    for pattern in ARTIFACTS:
        for path in sorted(path for path in run.path.glob(pattern) if is_own(path)):
            client.log_artifact(made, str(path))
    client.set_terminated(made, "FINISHED" if run.summary.get("ended") == "complete" else "FAILED")


def _metrics(summary: dict[str, Any]) -> Iterator[tuple[str, float, int]]:
    for row in rounds(summary):
        for name, value in row.items():
            if name != "round" and value is not None:
                yield name, float(value), row["round"]
    for row in scores(summary):
        yield row["name"], float(row["value"]), summary["rounds"]


def _flat(tree: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is in a tree as `a.b`, lists whole."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _write(path: Path, rows: Sequence[Row]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue(), newline="")
    return path
