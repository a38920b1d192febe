"""What in a table is hardly meant is refused or said: quantities as labels, one column under two names, ids."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.bank import bank_config, write_files
from tests.integration.command_support import cafe
from vfl.config import RunConfig, parse_config
from vfl.datasets import Data
from vfl.datasets.slices import load_data
from vfl.doctor.findings import Level, Sheet
from vfl.doctor.holdings import check_attack, check_slice
from vfl.errors import UserError
from worker.alignment import table_facts

ROWS = 40
DRAW = np.random.default_rng(0)
COLUMNS: dict[str, list[Any]] = {
    "person": [f"p{i}" for i in range(ROWS)],
    "income": DRAW.normal(3000, 900, ROWS).round(2).tolist(),
    "savings": DRAW.integers(0, 100_000, ROWS).tolist(),
    "job": DRAW.choice(["cook", "nurse"], ROWS).tolist(),
    "again": DRAW.integers(0, 2, ROWS).tolist(),
}


def loaded(folder: Path, label: str = "again", options: dict[str, Any] | None = None, **columns: list[Any]) -> Data:
    """Load the table with further columns."""
    table = COLUMNS | columns
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    source = {"name": "csv", "path": str(folder / "table.csv"), "label": label, "id": "person"} | (options or {})
    return load_data(
        parse_config({"data": source, "federation": {"workers": 1, "batch_size": 4, "epochs": 1}}, "the test")
    )


def test_an_ordinary_table_raises_no_doubts(tmp_path: Path) -> None:
    assert loaded(tmp_path).doubts == ()
    files = write_files(tmp_path)
    assert load_data(parse_config(bank_config(files), "the test")).doubts == ()


@pytest.mark.parametrize(("label", "count"), [("income", 40), ("savings", 40)])
def test_a_quantity_is_no_label(tmp_path: Path, label: str, count: int) -> None:
    with pytest.raises(UserError, match=rf"'{label}' holds {count} different numbers in 40 rows.* data.categorical"):
        loaded(tmp_path, label)


def test_numbers_that_name_classes_are_taken_as_such_where_the_config_says_so(tmp_path: Path) -> None:
    numbers = [i % 22 for i in range(ROWS)]
    with pytest.raises(UserError, match="22 different numbers in 40 rows"):
        loaded(tmp_path, "class", **{"class": numbers})
    data = loaded(tmp_path, "class", {"categorical": ["class"]}, **{"class": [i % 20 for i in range(ROWS)]})
    assert data.classes == 20


def test_many_classes_are_asked_about_where_each_has_rows_enough(tmp_path: Path) -> None:
    rows = "".join(f"{i % 7},{i % 25}\n" for i in range(250))
    (tmp_path / "c.csv").write_text(f"a,y\n{rows}")
    source = {"name": "csv", "path": str(tmp_path / "c.csv"), "label": "y"}
    config = parse_config({"data": source, "federation": {"workers": 1, "batch_size": 4, "epochs": 1}}, "the test")
    (doubt,) = load_data(config).doubts
    assert doubt == (
        "data.label: column 'y' holds 25 different numbers in 250 rows, and a class is made of each: is that meant?"
    )


def test_names_of_rows_are_no_label(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'name' holds 40 different words in 40 rows.*; choose another column"):
        loaded(tmp_path, "name", name=[f"n{i}" for i in range(ROWS)])


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (COLUMNS["again"], "column 'new' of .*table.csv is the label again, row by row: leave it out of data.columns"),
        (COLUMNS["person"], "column 'new' of .*table.csv is the id again, row by row"),
    ],
)
def test_one_column_under_two_names_is_refused(tmp_path: Path, column: list[Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        loaded(tmp_path, new=column)


@pytest.mark.parametrize(
    ("name", "column", "sentence"),
    [
        ("new", [7] * ROWS, "holds the same value in every row"),
        ("new", ["so"] * ROWS, "holds the same value in every row"),
        ("new", ["yes" if one else "no" for one in COLUMNS["again"]], "gives the label away: each of its 2 values"),
        ("new", list(range(1001, 1001 + ROWS)), "differs in nearly every row, as an id does"),
        ("new", [f"x{i}" for i in range(ROWS)], "differs in nearly every row, as an id does"),
        ("customer_id", [i * 7919 for i in range(ROWS)], "differs in nearly every row, as an id does"),
    ],
)
def test_what_may_be_a_mistake_is_said(tmp_path: Path, name: str, column: list[Any], sentence: str) -> None:
    (doubt,) = loaded(tmp_path, **{name: column}).doubts
    assert doubt.startswith(f"data: column {name!r} of {tmp_path / 'table.csv'} {sentence}")


def doubtful(folder: Path) -> RunConfig:
    files = write_files(folder, customers=60)
    lines = files[0].read_text().splitlines()
    files[0].write_text(
        "\n".join([f"{lines[0]},bank_id", *(f"{line},{i}" for i, line in enumerate(lines[1:], 90_000))])
    )
    return parse_config(bank_config(files), "the test")


def test_the_doctor_says_it_at_the_coordinator_and_at_the_worker(tmp_path: Path) -> None:
    config, coordinator = doubtful(tmp_path), Sheet("here")
    check_attack(coordinator, config, ())
    (warning,) = (line for line in coordinator.lines if line.level == Level.WARNING)
    assert "column 'bank_id' of" in warning.text
    for path in (None, tmp_path / "bank.csv"):
        worker = Sheet("here")
        check_slice(worker, config, 0, path)
        assert [line.text for line in worker.lines if line.level == Level.WARNING] == [warning.text]
    assert table_facts(config, tmp_path / "shop.csv", 1)[2] == []


def test_a_run_says_it_first_and_keeps_it_in_its_summary(tmp_path: Path) -> None:
    file = tmp_path / "bank.yaml"
    tree = doubtful(tmp_path).model_dump(mode="json") | {"attack": {"name": "none"}}
    file.write_text(yaml.safe_dump(tree))
    done = cafe("run", file, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("Warning: data: column 'bank_id' of ")
    (doubt,) = json.loads((tmp_path / "out" / "summary.json").read_text())["tables"]["doubts"]
    assert doubt in " ".join(done.stderr.split())
    assert "doubtful" in done.stdout
