"""Rows of results, put into a table, a text and a picture."""

import csv
import io

import pytest
from PIL import Image

from tests.vfl.sweep.fabricated import TRAINING, planned, row
from vfl.folder.schema import as_json
from vfl.folder.summary import Summary
from vfl.sweep.cell import Row
from vfl.sweep.results import numbers_of
from vfl.sweep.results.pictures import save_curves, save_heatmap
from vfl.sweep.results.table import pivot
from vfl.sweep.results.text import grid, markdown
from vfl.sweep.results.write import as_csv, as_results

AXES = {
    "defence": {"none": {}, "wall | moat": {}},
    "attack": {"exact": {"attack": {"name": "exact"}}, "cafe": {"attack": {"name": "cafe"}}, "training": TRAINING},
}


@pytest.fixture
def plan(tmp_path):
    return planned(tmp_path, axes=AXES)


def price(loss, accuracy):
    return row(loss=loss, accuracy=accuracy, **{"seconds.round": 0.02, "bytes.round": 3e6})


def rows_of(plan):
    outcomes = [row(psnr=90), row(psnr=20.04), price(0.5, 0.91), Row("it broke"), row(psnr=12), price(0.7, 0.8)]
    return {cell.name: outcome for cell, outcome in zip(plan.cells, outcomes, strict=True)}


def test_the_table_has_the_best_attacker_and_the_price_of_training(plan):
    header, first, second = grid(pivot(plan, rows_of(plan)))
    assert header[:4] == ["defence", "exact", "cafe", "best attacker"]  # `training` has no attack, so no column
    assert first == ["none", "90.0", "20.0", "90.0 (exact)", "0.5000", "91.0 %", "20", "3"]
    assert second == ["wall | moat", "failed", "12.0", "12.0 (cafe)", "0.7000", "80.0 %", "20", "3"]


def test_the_best_is_the_lowest_where_low_is_good(tmp_path):
    plan = planned(tmp_path, axes=AXES, table={"value": "train.loss_end"})
    table = pivot(plan, {cell.name: row(loss=loss) for loss, cell in enumerate(plan.cells)})
    assert table.columns == ("exact", "cafe", "training")
    assert [(line.best.value, line.best.column) for line in table.lines] == [(0, "exact"), (3, "exact")]


def test_axes_that_are_neither_rows_nor_columns_are_averaged(tmp_path):
    plan = planned(tmp_path, axes={"seed": [0, 1], **AXES}, table={"rows": "defence", "columns": "attack"})
    table = pivot(plan, {cell.name: row(psnr=10 + 4 * int(cell.values["seed"])) for cell in plan.cells})
    first = table.lines[0].entries[0]
    assert first.value == 12
    assert first.half == pytest.approx(12.706 * 2, rel=1e-4)  # Student's t with one degree of freedom
    assert (first.runs, first.text) == (2, "12.0 ± 25.4 (n = 2)")
    assert table.note.startswith("Means over seed. After ±: half of the 95 % interval of the mean over n seeds")
    assert as_json(as_results(plan, {}, table))["pivot"]["lines"][0]["entries"][0]["runs"] == 2


def test_means_over_other_things_than_seeds_have_no_interval(tmp_path):
    axes = {"size": {"few": {"federation.batch_size": 5}, "many": {}}, **AXES}
    plan = planned(tmp_path, axes=axes, table={"rows": "defence", "columns": "attack"})
    table = pivot(plan, {cell.name: row(psnr=12) for cell in plan.cells})
    assert (table.lines[0].entries[0].text, table.note) == ("12.0", "Means over size.")


def test_rows_may_combine_axes_and_a_single_axis_has_one_column(tmp_path):
    plan = planned(tmp_path, axes={"seed": [0, 1], **AXES}, table={"rows": ["defence", "seed"], "columns": "attack"})
    assert [line.name for line in pivot(plan, {}).lines] == ["none, 0", "none, 1", "wall | moat, 0", "wall | moat, 1"]
    single = pivot(planned(tmp_path, axes={"attack": AXES["attack"]}, cells={"alone": {}}), {})
    assert (single.columns, [line.name for line in single.lines]) == (
        ("PSNR, mean (dB)",),
        ["exact", "cafe", "training"],
    )
    assert [name for name, _ in single.singles] == ["alone"]


def test_what_is_missing_says_why(tmp_path):
    plan = planned(tmp_path, axes=AXES, skip=[{"defence": "none", "attack": "cafe"}])
    table = pivot(plan, {"none, exact": row()})
    assert [[entry.text for entry in line.entries] for line in table.lines] == [
        ["no value", "·"],
        ["not run", "not run"],
    ]


def test_markdown_keeps_its_columns_and_tells_why_cells_failed(plan):
    text = markdown("grid", pivot(plan, rows_of(plan)), rows_of(plan))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {9}
    assert "- wall \\| moat, exact: it broke" in text


def test_csv_and_json_hold_every_row_with_its_place(tmp_path):
    plan = planned(tmp_path, axes={"seed": {"first": {"seed": 5}}, "attack": {"none": {}}})
    rows = {plan.cells[0].name: row(psnr=31.5)}
    (line,) = csv.DictReader(io.StringIO(as_csv(plan, rows)))
    assert (line["cell"], line["axis.seed"], line["seed"], line["attack"]) == ("first, none", "first", "5", "none")
    assert (line["ended"], line["error"], line["attack.psnr_mean"], line["attack.r2"]) == ("complete", "", "31.5", "")
    tree = as_json(as_results(plan, rows, pivot(plan, rows)))
    assert set(tree["versions"]) == {"cafe-vfl", "python", "torch", "grpcio", "commit"}
    assert tree["rows"][0]["axes"] == {"seed": "first", "attack": "none"}
    assert tree["rows"][0]["config"]["seed"] == 5


@pytest.mark.parametrize("outcomes", ["all", "none", "equal", "far apart"])
def test_the_picture_is_painted_whatever_there_is(plan, tmp_path, outcomes):
    psnr = {"equal": lambda at: 30.0, "far apart": lambda at: 10.0**at}
    rows = {
        "all": lambda: rows_of(plan),
        "none": dict,
    }.get(outcomes, lambda: {cell.name: row(psnr=psnr[outcomes](at)) for at, cell in enumerate(plan.cells)})()
    save_heatmap(tmp_path / "heatmap.png", "grid", pivot(plan, rows))
    with Image.open(tmp_path / "heatmap.png") as picture:
        assert min(picture.size) > 200
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 3


@pytest.mark.parametrize("done", [True, False])
def test_curves_are_drawn_along_an_axis_of_numbers_and_only_where_asked(tmp_path, done):
    axes = {"optimiser": {"SGD": {}, "Adam": {}}, "training.lr": [1e-4, 1e-2, 1.0], "attack": AXES["attack"]}
    asked = {"rows": ["optimiser", "training.lr"], "columns": "attack", "along": "training.lr"}
    plan = planned(tmp_path, axes=axes, table=asked)
    save_curves(tmp_path / "curves.png", "rates", pivot(plan, {c.name: row(psnr=30) for c in plan.cells if done}))
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width > 2 * picture.height  # a panel for each optimiser
    save_curves(tmp_path / "none.png", "rates", pivot(planned(tmp_path, axes=axes), {}))
    assert not (tmp_path / "none.png").exists()


def test_numbers_that_follow_from_a_summary():
    summary = {
        "config": {"federation": {"workers": 2}},
        "samples": 10,
        "rounds": 40,
        "seconds": {"total": 9, "federation": 8.0, "attack": 0},
        "rounds_per_second": None,
        "bytes": {"up": 100, "down": 60, "peer": 40, "raw": 1},
        "train": {"loss_first": 40.0, "loss_last": 1.0, "test_accuracy": None, "losses": list(range(40, 0, -1))},
        "attack": {"name": "none", "used": [], "psnr_mean": None},
    }
    numbers = numbers_of(Summary.model_validate(summary))
    assert numbers["train.loss_end"] == 1.5  # the last two of forty rounds
    assert numbers["seconds.round"] == 0.2
    assert numbers["bytes.round"] == 5
    assert numbers["attack.psnr_mean"] is None
    fast = Summary.model_validate(summary | {"rounds_per_second": 10.0})
    assert numbers_of(fast)["seconds.round"] == 0.1
