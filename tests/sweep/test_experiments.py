"""The experiments of the paper: every smoke sweep runs, every size can start, the page is what the command writes."""

import json
from pathlib import Path

import pytest

from sweep.cell import finished
from sweep.plan import load_plan
from sweep.results import keep_results, write_page
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
    (swept / "results.json").write_text(
        json.dumps(
            {"sweep": "table99-small", "versions": {"cafe-vfl": "1", "torch": "2", "python": "3"}, "rows": [row]}
        )
    )
    return files, swept, tmp_path / "kept"


def test_the_page_has_our_number_the_papers_and_what_was_not_run(kept, tmp_path):
    files, swept, folder = kept
    keep_results(swept, files, folder)
    write_page(files, folder, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "## Table 99: Of everything" in page
    assert "| CAFE | not run (31.5) |" in page
    assert "| exact | 77.7 |" in page
    assert "1 of 2 cells run" in page
    assert "--size paper`).\n\nNot run." in page


def test_a_result_of_another_config_than_the_files_counts_as_not_run(kept, tmp_path):
    files, swept, folder = kept
    keep_results(swept, files, folder)
    tree = json.loads((folder / "table99-small.json").read_text())
    tree["rows"][0]["config"]["federation"]["epochs"] = 3
    (folder / "table99-small.json").write_text(json.dumps(tree))
    write_page(files, folder, tmp_path / "page.md")
    assert "| exact | not run |" in (tmp_path / "page.md").read_text()


def test_what_is_no_experiments_result_is_a_sentence(kept, tmp_path):
    files, swept, folder = kept
    tree = json.loads((swept / "results.json").read_text()) | {"sweep": "another"}
    (swept / "results.json").write_text(json.dumps(tree))
    with pytest.raises(UserError, match="is of 'another', which is no experiment"):
        keep_results(swept, files, folder)
    ended = cafe("results", "--add", tmp_path)
    assert ended.returncode == 2
    assert "is not a sweep's results" in ended.stderr
