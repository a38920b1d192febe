"""The tables in the docs are what `cafe results` makes of results that are kept, and say what these were made by."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.table import Table

from tests.vfl.sweep.fabricated import planned, row
from vfl.bench.rigs import save
from vfl.errors import UserError
from vfl.folder.measured import COUNTED, certified_and_wrong
from vfl.folder.versions import commit
from vfl.sweep.results.docs import BLOCK, fill_docs, filled, keep
from vfl.sweep.results.write import write_results

DOCS, EXPERIMENTS, KEPT = Path("docs"), Path("experiments/paper"), Path("experiments/results")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_the_tables_in_the_repository_are_what_the_command_writes(page):
    text = page.read_text()
    assert filled(text, EXPERIMENTS, KEPT) == text


def test_every_kept_table_has_one_block():
    blocks = [name for page in DOCS.glob("*.md") for name, _ in BLOCK.findall(page.read_text())]
    assert sorted(blocks) == sorted(path.stem for path in (KEPT / "tables").glob("*.json"))


def test_what_reports_say_of_certificates_is_the_kept_tables_total():
    head, *_, total = json.loads((KEPT / "tables" / "certificates.json").read_text())["table"]
    right, wrong = (int(total[head.index(f"certified, {what}")]) for what in ("right", "wrong"))
    assert json.loads(COUNTED.read_text()) == {"certified": right + wrong, "certified_wrong": wrong}
    assert certified_and_wrong("exact") == f"; {wrong:,} of {right + wrong:,} such samples of other runs were wrong"
    assert certified_and_wrong("isolate") == ""


@pytest.fixture
def docs(tmp_path):
    """A page with a block."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "page.md").write_text("Before.\n\n<!-- table: bench-speed -->\n<!-- end -->\n\nAfter.\n")
    return folder


def test_a_benchs_table_is_kept_and_shown_with_its_commit(docs, tmp_path):
    table = Table("path", "ratio")
    table.add_row("codec | in", "1.60")
    save(tmp_path / "bench-speed.json", {"ratios": [1.6]}, "speed", table)
    keep(tmp_path / "bench-speed.json", docs, EXPERIMENTS, tmp_path)
    assert fill_docs(docs, EXPERIMENTS, tmp_path) == [docs / "page.md"]
    head, block, tail = (
        (docs / "page.md").read_text().partition("| path | ratio |\n| --- | --- |\n| codec \\| in | 1.60 |\n")
    )
    assert head == "Before.\n\n<!-- table: bench-speed -->\n"
    assert block
    assert tail.startswith(f"\n(`cafe bench speed`; commit {commit()}, 20")
    assert tail.endswith(".)\n<!-- end -->\n\nAfter.\n")
    assert fill_docs(docs, EXPERIMENTS, tmp_path) == []


def test_a_sweeps_table_is_kept_with_the_commits_of_its_rows(docs, tmp_path):
    (docs / "page.md").write_text("<!-- table: grid -->\n<!-- end -->\n\n![The grid.](images/heatmap-grid.png)\n")
    axes = {
        "defence": {"none": {}, "noise": {"defence": {"name": "noise"}}},
        "attacker": {"exact": {"attack": {"name": "exact"}}},
    }
    plan = planned(tmp_path, axes=axes)
    rows = {"none, exact": row(psnr=99.1), "noise, exact": replace(row(psnr=7.4), commit="0123abc")}
    write_results(tmp_path, plan, rows)
    table, picture = keep(tmp_path, docs, EXPERIMENTS, tmp_path)
    assert (table.name, picture.read_bytes()) == ("grid.json", (tmp_path / "heatmap.png").read_bytes())
    (tmp_path / "heatmap.png").unlink()
    assert keep(tmp_path, docs, EXPERIMENTS, tmp_path) == [table]
    fill_docs(docs, EXPERIMENTS, tmp_path)
    page = (docs / "page.md").read_text()
    assert "| defence | exact |\n| --- | --- |\n| none | 99.1 |\n| noise | 7.4 |\n\n" in page
    assert "(`cafe sweep`, grid; commit 0123abc, unknown, 20" in page


def test_a_sweeps_table_has_a_line_for_each_cell_where_its_file_says_which_numbers(docs, tmp_path):
    (docs / "page.md").write_text("<!-- table: grid -->\n<!-- end -->\n")
    (tmp_path / "tables").mkdir()
    shows = {"attack": "attack.name", "mean PSNR": "attack.psnr_mean", "labels": "attack.label_accuracy"}
    (tmp_path / "tables" / "grid.json").write_text(json.dumps({"axes": ["defence"], "shows": shows}))
    plan = planned(tmp_path, axes={"defence": {"none": {}, "noise": {"defence": {"name": "noise"}}}})
    write_results(tmp_path, plan, {"none": row(psnr=99.1), "noise": row(psnr=7.4)})
    for _ in range(2):  # what is kept says again which numbers
        keep(tmp_path, docs, EXPERIMENTS, tmp_path)
    fill_docs(docs, EXPERIMENTS, tmp_path)
    page = (docs / "page.md").read_text()
    name = plan.cells[0].config.attack.name
    assert f"| none | `{name}` | 99.1 | – |\n| noise | `{name}` | 7.4 | – |\n" in page


def test_a_table_without_a_commit_says_so(docs, tmp_path):
    kept = {"command": "`cafe bench speed`", "commit": None, "date": "2026-11-16", "table": [["path"], ["codec"]]}
    (tmp_path / "bench-speed.json").write_text(json.dumps(kept))
    keep(tmp_path / "bench-speed.json", docs, EXPERIMENTS, tmp_path)
    fill_docs(docs, EXPERIMENTS, tmp_path)
    assert "(`cafe bench speed`; commit unknown, 2026-11-16.)" in (docs / "page.md").read_text()


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("bench-speed.json", '{"table": []}', "bench-speed.json: is no table that can be kept .* lacks command"),
        ("bench-speed.json", "nul", "bench-speed.json: is no table that can be kept"),
        (
            "other.json",
            '{"command": "", "commit": "", "date": "", "table": []}',
            "'other', which is no experiment .*docs",
        ),
    ],
)
def test_what_belongs_in_no_block_is_a_sentence(docs, tmp_path, file, text, sentence):
    (tmp_path / file).write_text(text)
    with pytest.raises(UserError, match=sentence):
        keep(tmp_path / file, docs, EXPERIMENTS, tmp_path)


def test_a_block_without_a_kept_table_is_a_sentence(docs, tmp_path):
    with pytest.raises(UserError, match=r"tables/bench-speed\.json: is no table"):
        fill_docs(docs, EXPERIMENTS, tmp_path)
