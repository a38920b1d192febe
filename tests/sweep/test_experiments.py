"""The experiments of the paper: every smoke sweep runs, every size can start, the page is what the command writes."""

import json
from pathlib import Path

import pytest
from PIL import Image

from sweep.cell import finished
from sweep.plan import load_plan
from sweep.results import draw_curves, keep_results, write_page
from sweep.table import pivot
from sweep.write import write_results
from tests.integration.command_support import cafe
from vfl.errors import UserError
from vfl.launch import run_federation
from vfl.referee import score_run
from vfl.slices import load_data

EXPERIMENTS = Path("experiments/paper")
FILES = sorted(EXPERIMENTS.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_smoke_sweep_runs(file, tmp_path):
    """Every cell as a federation in processes; `tests/sweep/test_sweep.py` has the command that starts them."""
    plan = load_plan(file, size="smoke")
    rows = {}
    for cell in plan.cells:
        folder = tmp_path / "cells" / cell.folder
        data = load_data(cell.config)
        run_federation(cell.config, data, folder, quiet=True)
        score_run(folder, cell.config, data)
        rows[cell.name] = finished(cell.config, folder)
    assert all(row is not None and row.complete for row in rows.values()), rows
    write_results(tmp_path, plan, rows)
    table = pivot(plan, rows)
    assert all(entry.value is not None for line in table.lines for entry in line.entries if entry.state != "skipped")
    assert {cell.config.attack.name for cell in plan.cells} > {"cafe"} or file.stem == "table11"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("size", ["small", "paper"])
def test_every_size_makes_whole_configs_with_exact_beside_the_papers_methods(file, size):
    plan = load_plan(file, size=size)
    assert "exact" in {cell.config.attack.name for cell in plan.cells}
    table = pivot(plan, {})
    printed = plan.paper.numbers
    if size == "paper":
        assert set(printed) <= {line.name for line in table.lines}
        assert {column for row in printed.values() for column in row} <= set(table.columns)


def test_the_page_in_the_repository_is_what_the_command_writes(tmp_path):
    write_page(EXPERIMENTS, Path("experiments/results"), tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == Path("RESULTS.md").read_text()


@pytest.fixture
def kept(tmp_path):
    """An experiment of two cells, swept by hand: one of them is done."""
    files, swept = tmp_path / "files", tmp_path / "swept"
    files.mkdir()
    swept.mkdir()
    tree = {
        "base": {
            "data": {"name": "digits"},
            "federation": {"workers": 2, "batch_size": 5, "epochs": 2},
            "model": {"name": "mlp"},
        },
        "axes": {"attacker": {"CAFE": {}, "exact": {"attack": {"name": "exact"}}}, "data": {"digits": {}}},
        "paper": {"table": "Table 99", "title": "Of everything", "numbers": {"CAFE": {"digits": 31.5}}},
        "sizes": {"paper": {}, "small": {"base": {"seed": 4}, "note": "Small."}},
    }
    (files / "table99.yaml").write_text(json.dumps(tree))
    plan = load_plan(files / "table99.yaml", size="small")
    row = {"cell": "exact, digits", "error": "", "attack.used": [], "attack.psnr_mean": 77.7}
    row["config"] = plan.cells[1].config.model_dump(mode="json")
    versions = {"cafe-vfl": "1", "torch": "2", "python": "3"}
    swept_tree = {"sweep": "table99-small", "versions": versions, "rows": [row], "pivot": {}}
    (swept / "results.json").write_text(json.dumps(swept_tree))
    return files, swept, tmp_path / "kept"


def page_of(files, folder):
    write_page(files, folder, folder / "page.md")
    return (folder / "page.md").read_text()


def change(folder, name, edit):
    """Read a JSON file, let it be edited, and write it back."""
    tree = json.loads((folder / name).read_text())
    edit(tree)
    (folder / name).write_text(json.dumps(tree))


def test_the_page_has_our_number_the_papers_and_what_was_not_run(kept):
    files, swept, folder = kept
    keep_results(swept, files, folder)
    page = page_of(files, folder)
    assert "## Table 99: Of everything" in page
    assert "| CAFE | not run (31.5) |" in page
    assert "| exact | 77.7 |" in page
    assert "1 of 2 cells run" in page
    assert "--size paper`).\n\nNot run." in page


def test_results_of_another_day_are_kept_beside_those_before(kept):
    files, swept, folder = kept
    keep_results(swept, files, folder)
    config = load_plan(files / "table99.yaml", size="small").cells[0].config.model_dump(mode="json")
    later = {"cell": "CAFE, digits", "attack.psnr_mean": 22.2, "config": config}
    change(swept, "results.json", lambda tree: tree["rows"][0].update(later))
    keep_results(swept, files, folder)
    page = page_of(files, folder)
    assert "| CAFE | 22.2 (31.5) |" in page
    assert "| exact | 77.7 |" in page


def test_columns_may_show_other_numbers(kept):
    files, swept, folder = kept
    shows = {"attack.psnr_mean": ["exact"], "train.test_accuracy": ["exact"]}
    change(files, "table99.yaml", lambda tree: tree.update(table={"rows": "data", "columns": "attacker"}))
    change(files, "table99.yaml", lambda tree: tree["paper"].update(shows=shows, numbers={"digits": {"exact": 31.5}}))
    change(swept, "results.json", lambda tree: tree["rows"][0].update({"train.test_accuracy": 0.875}))
    keep_results(swept, files, folder)
    page = page_of(files, folder)
    assert "| data | exact: PSNR, mean (dB) | exact: test accuracy |" in page
    assert "| digits | 77.7 (31.5) | 0.875 |" in page
    change(files, "table99.yaml", lambda tree: tree["paper"].update(shows={"psnr": ["exact"]}))
    with pytest.raises(UserError, match=r"paper\.shows: there is no such number"):
        page_of(files, folder)


def test_an_experiment_along_numbers_has_a_picture(kept):
    files, swept, folder = kept
    config = load_plan(files / "table99.yaml", size="small").cells[1].config.model_dump(mode="json")
    axes = {"seed": {"1": {"seed": 1}, "2": {"seed": 2}}, "attacker": {"exact": {"attack": {"name": "exact"}}}}
    table = {"rows": "seed", "columns": "attacker", "along": "seed"}
    change(files, "table99.yaml", lambda tree: tree.update(axes=axes, table=table))
    change(files, "table99.yaml", lambda tree: tree["paper"].update(numbers={}))
    change(swept, "results.json", lambda tree: tree["rows"][0].update(cell="1, exact", config=config | {"seed": 1}))
    keep_results(swept, files, folder)
    draw_curves(files, folder)
    assert f"({(folder / 'table99-small.png').as_posix()})" in page_of(files, folder)
    with Image.open(folder / "table99-small.png") as picture:
        assert picture.width > 500


def test_neither_a_failure_nor_another_config_replaces_a_result(kept):
    files, swept, folder = kept
    keep_results(swept, files, folder)
    broken = {"error": "it broke", "attack.psnr_mean": None}
    change(swept, "results.json", lambda tree: tree["rows"][0].update(broken))
    keep_results(swept, files, folder)
    change(swept, "results.json", lambda tree: tree["rows"][0].update({"error": "", "attack.psnr_mean": 1.0}))
    change(swept, "results.json", lambda tree: tree["rows"][0]["config"]["data"].update(samples=10))  # as --set does
    with pytest.raises(UserError, match="none of its cells has the config that"):
        keep_results(swept, files, folder)
    assert "| exact | 77.7 |" in page_of(files, folder)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"sweep": "table99-small", "rows": [{}]}', '{"sweep": 3, "rows": []}', "nul"]
)
def test_what_is_no_results_file_is_a_sentence(kept, text):
    files, swept, folder = kept
    (swept / "results.json").write_text(text)
    with pytest.raises(UserError, match="is not a sweep's results"):
        keep_results(swept, files, folder)


def test_a_result_of_another_config_than_the_files_counts_as_not_run(kept):
    files, swept, folder = kept
    keep_results(swept, files, folder)
    tree = json.loads((folder / "table99-small.json").read_text())
    tree["rows"][0]["config"]["federation"]["epochs"] = 3
    (folder / "table99-small.json").write_text(json.dumps(tree))
    assert "| exact | not run |" in page_of(files, folder)


def test_what_is_no_experiments_result_is_a_sentence(kept, tmp_path):
    files, swept, folder = kept
    tree = json.loads((swept / "results.json").read_text()) | {"sweep": "another"}
    (swept / "results.json").write_text(json.dumps(tree))
    with pytest.raises(UserError, match="is of 'another', which is no experiment"):
        keep_results(swept, files, folder)
    ended = cafe("results", "--add", tmp_path)
    assert ended.returncode == 2
    assert "is not a sweep's results" in ended.stderr
