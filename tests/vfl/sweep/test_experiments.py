"""The experiments of the paper: every smoke sweep runs, every size can start, the page is what the command writes."""

import json
from pathlib import Path

import pytest
from PIL import Image

from attacker.cafe import Cafe
from tests.integration.command_support import cafe
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.local.launch import run_federation
from vfl.referee import score_run
from vfl.sweep.cell import finished
from vfl.sweep.plan import load_plan
from vfl.sweep.results.kept import keep_results
from vfl.sweep.results.page import draw_curves, page_text, write_page
from vfl.sweep.results.table import pivot
from vfl.sweep.results.write import write_results

EXPERIMENTS = Path("experiments/paper")
FILES = sorted(EXPERIMENTS.glob("*.yaml"))
WITHOUT_CAFE = ("one_gradient", "table11")
LONG = ("fake_gradients", "table4", "table7", "table11")
"""Of the same kind as the others; `test_startable.py` holds each of their cells against its attack before a round."""


@pytest.mark.parametrize(
    "file", [pytest.param(file, marks=[pytest.mark.slow] * (file.stem in LONG), id=file.stem) for file in FILES]
)
def test_the_smoke_sweep_runs(file, tmp_path):
    """Every cell as a federation in processes; `tests/vfl/sweep/test_sweep.py` has the command that starts them."""
    plan = load_plan(file, size="smoke")
    rows = {}
    for cell in plan.cells:
        folder = tmp_path / "cells" / cell.folder
        data = load_data(cell.config)
        run_federation(cell.config, data, folder)
        score_run(folder, cell.config, data)
        rows[cell.name] = finished(cell.config, folder)
    assert all(row is not None and row.complete for row in rows.values()), rows
    write_results(tmp_path, plan, rows)
    table = pivot(plan, rows)
    assert all(entry.value is not None for line in table.lines for entry in line.entries if entry.state != "skipped")
    assert all("train.loss_end" in row.curves for row in rows.values())
    assert {cell.config.attack.name for cell in plan.cells} > {"cafe"} or file.stem in WITHOUT_CAFE


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("size", ["small", "paper"])
def test_every_size_makes_whole_configs_with_exact_beside_the_papers_methods(file, size):
    plan = load_plan(file, size=size)
    assert "exact" in {cell.config.attack.name for cell in plan.cells}
    table = pivot(plan, {})
    printed = plan.paper.numbers
    if size == "paper":
        assert set(printed) <= {line.name for line in table.lines} | set(map(str, plan.rounds))
        assert {column for row in printed.values() for column in row} <= set(table.columns)


def test_the_page_in_the_repository_is_what_the_command_writes():
    page = Path("RESULTS.md")
    assert page_text(EXPERIMENTS, Path("experiments/results"), page) == page.read_text()


def test_every_number_that_is_transcribed_is_on_the_page():
    page = Path("RESULTS.md").read_text()
    for file in FILES:
        plan = load_plan(file, size="paper")
        section = page.partition(f"## {plan.paper.table}: ")[2].partition("**Size `small`**")[0]
        for row, columns in plan.paper.numbers.items():
            line = next(line for line in section.splitlines() if line.startswith(f"| {row} |"))
            for column in columns:
                for value in plan.paper.printed(row, column, plan.table.value).values():
                    assert f"({value:g})" in line, (file, row, column)


def test_the_page_has_the_papers_order():
    heads = [line.removeprefix("## ").partition(":")[0] for line in Path("RESULTS.md").read_text().splitlines()]
    tables = [f"Table {number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 11)]
    order = [*tables, "Figures 6 and 7", "Yale faces", "Learning rates"]
    assert [head for head in heads if head in order] == order


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
    machine = {"cores": 8, "processor": "abacus"}
    swept_tree = {"sweep": "table99-small", "versions": versions, "machine": machine, "rows": [row], "pivot": {}}
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
    assert "1 of 2 cells run; cafe-vfl 1, torch 2, Python 3, commit unknown, 8 cores (abacus)." in page
    grid = "| attacker | digits |\n| --- | ---: |\n| CAFE | not run (31.5) |\n| exact | not run |"
    # the folder's name decides where lines end
    assert f"paper`).\n\n{grid}\n\nPSNR, mean (dB); 0 of 2 cells run.\n" in page


@pytest.mark.parametrize(("own", "shared", "shown"), [("abc", "def", "abc"), (None, "def", "unknown")])
def test_the_page_names_the_commit_that_a_row_says_of_itself(kept, own, shared, shown):
    """A cell of an earlier day keeps its own commit when the sweep goes on with newer code."""
    files, swept, folder = kept
    change(swept, "results.json", lambda tree: tree["versions"].update(commit=shared))
    change(swept, "results.json", lambda tree: tree["rows"][0].update(commit=own))
    keep_results(swept, files, folder)
    assert f"Python 3, commit {shown}, 8 cores" in page_of(files, folder)


def test_what_the_mean_image_scores_is_the_last_row(kept):
    files, swept, folder = kept
    change(swept, "results.json", lambda tree: tree["rows"][0].update({"attack.psnr_baseline": 11.5}))
    keep_results(swept, files, folder)
    assert "| exact | 77.7 |\n| mean image | 11.5 |\n" in page_of(files, folder)


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


def test_a_run_is_a_cell_of_every_table_that_has_its_config_in_the_same_size(kept):
    files, swept, folder = kept
    other = json.loads((files / "table99.yaml").read_text())
    other["axes"] = {"attacker": {"CAFE": {}, "rows by name": {"attack": {"name": "exact"}}}}
    other["paper"] |= {"table": "Table 98", "numbers": {}}
    (files / "table98.yaml").write_text(json.dumps(other))
    other["axes"]["attacker"]["rows by name"]["attack"]["name"] = "least_squares"
    (files / "table97.yaml").write_text(json.dumps(other | {"paper": other["paper"] | {"table": "Table 97"}}))
    assert [path.stem for path in keep_results(swept, files, folder)] == ["table99-small", "table98-small"]
    page = page_of(files, folder)
    assert page.count("| rows by name | 77.7 |") == 1
    assert page.count("77.7") == 2


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


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"shows": {"psnr": ["digits"]}}, r"paper\.shows: there is no such number"),
        (
            {"shows": {"seconds.total": ["digit"]}},
            r"paper\.shows\.seconds\.total: there is no column called 'digit', .*digits",
        ),
        ({"numbers": {"CAFE": {"digits": {"psnr": 3}}}}, r"paper\.numbers: there is no such number"),
    ],
)
def test_what_the_page_cannot_show_is_a_sentence(kept, changes, sentence):
    files, swept, folder = kept
    keep_results(swept, files, folder)
    change(files, "table99.yaml", lambda tree: tree["paper"].update(changes))
    with pytest.raises(UserError, match=sentence):
        page_of(files, folder)


def test_the_paper_may_print_other_numbers_than_the_tables_value(kept):
    files, swept, folder = kept
    printed = {"exact": {"digits": {"train.loss_end": 2.25, "attack.psnr_mean": 41.5}}}
    shows = {"attack.psnr_mean": ["digits"], "train.loss_end": ["digits"]}
    change(files, "table99.yaml", lambda tree: tree["paper"].update(shows=shows, numbers=printed))
    change(swept, "results.json", lambda tree: tree["rows"][0].update({"train.loss_end": 0.5}))
    keep_results(swept, files, folder)
    page = page_of(files, folder)
    assert "| exact | 77.7 (41.5) | 0.5000 (2.25) |" in page
    assert "| exact | not run (41.5) | not run (2.25) |" in page  # at the size of the paper


def test_an_experiment_along_numbers_has_a_picture(kept):
    files, swept, folder = kept
    config = load_plan(files / "table99.yaml", size="small").cells[1].config.model_dump(mode="json")
    axes = {"seed": {"1": {"seed": 1}, "2": {"seed": 2}}, "attacker": {"exact": {"attack": {"name": "exact"}}}}
    table = {"rows": "seed", "columns": "attacker", "along": "seed"}
    change(files, "table99.yaml", lambda tree: tree.update(axes=axes, table=table))
    change(files, "table99.yaml", lambda tree: tree["paper"].update(numbers={}))
    change(swept, "results.json", lambda tree: tree["rows"][0].update(cell="1, exact", config=config | {"seed": 1}))
    keep_results(swept, files, folder)
    assert ".png" not in page_of(files, folder)
    draw_curves(files, folder)
    assert "(table99-small.png)" in page_of(files, folder)
    write_page(files, folder, folder / "sub/page.md")
    assert "(../table99-small.png)" in (folder / "sub/page.md").read_text()
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


def test_a_newer_failure_replaces_an_older_one(kept):
    files, swept, folder = kept
    for error in ("it broke", "it broke in another way"):
        change(swept, "results.json", lambda tree, error=error: tree["rows"][0].update(error=error))
        keep_results(swept, files, folder)
    assert "Failed: exact, digits: it broke in another way\n" in page_of(files, folder)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"sweep": "table99-small", "rows": [{}]}', '{"sweep": 3, "rows": []}', "nul"]
)
def test_what_is_no_results_file_is_a_sentence(kept, text):
    files, swept, folder = kept
    (swept / "results.json").write_text(text)
    with pytest.raises(UserError, match="is not a sweep's results"):
        keep_results(swept, files, folder)


@pytest.mark.parametrize(
    "edit",
    [
        lambda tree: tree.pop("versions"),
        lambda tree: tree.pop("machine"),
        lambda tree: tree["versions"].pop("torch"),
        lambda tree: tree["machine"].pop("cores"),
        lambda tree: tree.update(versions=None),
        lambda tree: tree["rows"][0].update(machine=[2]),
        lambda tree: tree["rows"][0].pop("attack.used"),
    ],
)
def test_results_that_do_not_say_what_they_were_made_by_are_a_sentence(kept, edit):
    """In a sweep's folder and among those kept, where a hand may have been at work."""
    files, swept, folder = kept
    change(swept, "results.json", edit)
    with pytest.raises(UserError, match=r"results\.json: is not a sweep's results"):
        keep_results(swept, files, folder)
    folder.mkdir()
    (swept / "results.json").rename(folder / "table99-small.json")
    with pytest.raises(UserError, match=r"table99-small\.json: is not a sweep's results"):
        page_of(files, folder)


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


def test_every_row_of_tables_2_and_4_is_a_setting_of_one_attack_with_the_same_start_and_at_least_2000_rounds():
    for name, rivals in (("table2", ("DLG", "Cosine", "SAPAG", "BN", "GC")), ("table4", ("CAFE, gamma = 0",))):
        plan = load_plan(EXPERIMENTS / f"{name}.yaml", size="paper")
        cells = {cell.name: cell.config for cell in plan.cells}
        for data in ("CIFAR-10", "MNIST", "Linnaeus 5"):
            order = (lambda a, d: f"{a}, {d}") if name == "table2" else (lambda a, d: f"{d}, {a}")
            cafe = cells[order("CAFE", data)]
            for rival in rivals:
                other = cells[order(rival, data)]
                assert (other.attack.name, other.seed) == ("cafe", cafe.seed)
                assert other.federation.rounds >= 2000
                assert other.federation.model_copy(update={"rounds": cafe.federation.rounds}) == cafe.federation
                assert other.attack.options["lr_three"] == cafe.attack.options["lr_three"]


def test_no_rival_on_its_own_has_more_evaluations_than_cafe_has_iterations():
    cells = load_plan(EXPERIMENTS / "table2.yaml", size="paper").cells
    for cell in cells:
        if cell.values["attacker"].endswith("on its own"):
            batches = -(-800 // cell.config.federation.batch_size) * cell.config.federation.epochs
            assert batches * cell.config.attack.options["iterations"] == 8000


def test_one_xi_for_four_and_sixteen_workers_and_rates_that_do_not_decay():
    for size in ("paper", "small"):
        cells = [cell for cell in load_plan(EXPERIMENTS / "table6.yaml", size=size).cells if "CAFE" in cell.name]
        for data in {cell.values["data"] for cell in cells}:
            assert len({cell.config.attack.options["xi"] for cell in cells if cell.values["data"] == data}) == 1
    assert (Cafe().final_two, Cafe().final_three) == (1.0, 1.0)
