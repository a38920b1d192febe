"""A run's or a sweep's folder with links in it: nothing is written, removed or offered where they lead."""

import json
import os

import pytest

from tests.fuzz.folder_support import QUIETLY, held, recorded
from tests.vfl.report.made import config_of, images, write_run
from vfl.cli.app import app
from vfl.errors import UserError
from vfl.folder import clear_run
from vfl.folder.journal import NAME, Journal
from vfl.folder.summary import load_summary
from vfl.report.main import write_report
from vfl.ui.watch import Watch


def test_a_report_is_not_written_through_a_link(run, home):
    (run / "report.html.partial").symlink_to(home / "own")
    before = held(home)
    write_report(run)
    assert held(home) == before
    assert "<html" in (run / "report.html").read_text()
    assert not list(run.glob("*.partial"))


def test_files_follow_the_umask_as_before(run):
    before = os.umask(0o027)
    try:
        path = write_report(run)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_results_of_an_attack_are_not_written_through_links(here, home):
    folder = recorded(here)
    results = folder.parent / "attack-none"
    results.mkdir()
    (results / "summary.json.partial").symlink_to(home / "own")
    (results / "report.html.partial").symlink_to(home / "made")
    (results / NAME).symlink_to(home / "made")  # which is not there
    (results / "model.pt").symlink_to(home / "model.pt")
    for name in ("events", "snapshots", "transcript", "checkpoints"):
        (results / name).symlink_to(home)
    before = held(home)
    app(["attack", str(folder), *QUIETLY], standalone_mode=False)
    assert held(home) == before
    assert load_summary(results).attack.name == "none"
    assert not (results / NAME).is_symlink()


def test_an_attack_on_somebodys_run_follows_no_link_to_the_results(here, home):
    folder = recorded(here)
    (folder.parent / "attack-none").symlink_to(home)
    before = held(home)
    with pytest.raises(UserError, match=r"attack-none is a link, .* choose a folder: --out DIR"):
        app(["attack", str(folder), *QUIETLY], standalone_mode=False)
    assert held(home) == before


def test_results_are_beside_a_link_to_a_transcript_and_not_where_it_leads(here):
    folder = recorded(here)
    (here / "given").mkdir()
    (here / "given" / "transcript").symlink_to(folder)
    app(["attack", str(here / "given" / "transcript"), *QUIETLY], standalone_mode=False)
    assert (here / "given" / "attack-none" / "summary.json").is_file()
    assert [path.name for path in folder.parent.iterdir()] == ["transcript"]


def test_a_folder_that_the_user_names_may_be_a_link(here):
    folder = recorded(here)
    (here / "large-disk").mkdir()
    (here / "out").symlink_to(here / "large-disk")
    app(["attack", str(folder), *QUIETLY, "--out", str(here / "out")], standalone_mode=False)
    assert (here / "large-disk" / "summary.json").is_file()


def test_a_journal_is_not_written_through_a_link(here):
    (here / NAME).symlink_to(here / "elsewhere")
    Journal(here).say("hello")
    assert not (here / "elsewhere").exists()


def test_a_folder_is_cleared_of_links_and_not_through_them(here, home):
    before = held(home)
    for resumed in (True, False):
        (here / "run").mkdir(exist_ok=True)
        for name in ("events", "snapshots"):
            (here / "run" / name).symlink_to(home)
        (here / "run" / "a.png").symlink_to(home / "a.png")
        clear_run(here / "run", resumed)
        assert not list((here / "run").iterdir())
    assert held(home) == before


def test_tables_of_somebodys_run_are_not_written_through_links(run, home):
    before = held(home)
    (run / "csv").symlink_to(home)
    with pytest.raises(UserError, match="csv is a link"):
        app(["export", str(run)], standalone_mode=False)
    (run / "csv").unlink()
    (run / "csv").mkdir()
    (run / "csv" / "rounds.csv").symlink_to(home / "own")
    app(["export", str(run)], standalone_mode=False)
    assert held(home) == before
    assert (run / "csv" / "rounds.csv").read_text().startswith("round,")


@pytest.mark.parametrize("where", ["/elsewhere", "../other", "cells/../../other", "cells/link", "", "cells/\0", "loop"])
def test_a_sweep_has_its_cells_below_it(swept, where):
    other = swept.parent / "other"
    write_run(other, config_of(), images(6))
    (swept / "cells" / "link").symlink_to(other)
    (swept / "loop").symlink_to("loop")
    before = sorted(other.iterdir())
    named = str(other) if where == "/elsewhere" else where
    tree = json.loads((swept / "results.json").read_text())
    tree["rows"][0]["folder"] = named
    (swept / "results.json").write_text(json.dumps(tree))
    with pytest.raises(UserError, match=r"results\.json: a cell is in .*, which is not in the sweep's folder"):
        app(["report", str(swept)], standalone_mode=False)
    assert sorted(other.iterdir()) == before


@pytest.mark.parametrize("name", ["report.html", "summary.json"])
def test_a_page_offers_no_file_from_elsewhere(run, home, name):
    journal = Journal(run)
    journal.finish()
    write_report(run)
    (run / name).unlink()
    (run / name).symlink_to(home / "own")
    watch = Watch(run)
    watch.refresh()
    assert name not in json.loads(watch.text)["files"]
