"""A run's or a sweep's folder that may be anybody's: it is shown, or refused with a sentence, within little memory."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.folder_support import soon
from tests.fuzz.support import abouts, fuzz, little_memory, outcome
from tests.vfl.report.made import config_of, images, write_run
from vfl.errors import UserError
from vfl.folder import journal
from vfl.folder.journal import NAME, Journal, Tail
from vfl.folder.schema import as_json
from vfl.folder.summary import load_summary
from vfl.report.export import export_csv
from vfl.report.folder import read_run
from vfl.report.main import write_report
from vfl.report.page import run_page
from vfl.ui.watch import Watch


def changed(folder: Path, change) -> None:
    """Write a sweep's results anew, with a change."""
    tree = json.loads((folder / "results.json").read_text())
    change(tree)
    (folder / "results.json").write_text(json.dumps(tree))


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory):
    """The folder of a run without pictures, of which a page is quickly made, and its summary."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    write_run(folder, config_of(), images(6), scored=False)
    (folder / "recovered.npz").unlink()
    run_page(folder)
    return folder, as_json(load_summary(folder))


def keys(tree, above=()):
    """Give the place of everything in a tree."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from keys(value, (*above, key))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree: tree.update(rows="x"), "rows: input should be a valid list"),
        (lambda tree: tree["rows"][0].pop("folder"), "rows.0.folder: is missing"),
        (lambda tree: tree["rows"][0].update({"attack.psnr_mean": "x"}), "has 'x' for attack.psnr_mean"),
        (lambda tree: tree.update(pivot=[]), "pivot: "),
        (lambda tree: tree["pivot"].update(limits=[5, 1]), "the first of its limits is not below the second"),
        (
            lambda tree: tree["pivot"]["lines"][0].update(entries=[{"a": 1}]),
            "pivot.lines.0.entries.0.value: is missing",
        ),
    ],
)
def test_results_of_a_sweep_that_are_made_up_end_with_a_sentence(swept, change, words):
    write_report(swept)
    changed(swept, change)
    with pytest.raises(UserError, match=r"results\.json cannot be shown: .*") as refused:
        write_report(swept)
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["recovered.npz", "rows.json", "photograph_a.png"])
def test_a_pipe_in_a_runs_folder_is_not_waited_for(run, name):
    if name == "rows.json":
        np.savez(run / "recovered.npz", x=np.zeros((6, 4), np.float32))
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with soon():
        page = write_report(run).read_text()
    assert ("not a plain file" in page) == (name == "recovered.npz")


def test_pipes_in_a_table_and_a_sweep_and_beside_a_page_are_not_waited_for(swept):
    (swept / "results.json").unlink()
    os.mkfifo(swept / "results.json")
    with soon(), pytest.raises(UserError, match="not a plain file"):
        write_report(swept)
    os.mkfifo(swept / NAME)
    os.mkfifo(swept / "summary.json")
    with soon():
        watch = Watch(swept)
        watch.view.final = True
        watch._load()
    assert watch._result is None


@pytest.mark.parametrize("name", ["summary.json", "results.json"])
def test_a_file_that_is_larger_than_the_limit_is_not_read(here, name):
    (here / name).write_bytes(b"{}")
    os.truncate(here / name, 4 << 30)
    with little_memory(128 << 20):
        _, refusal = outcome(lambda: write_report(here), UserError)
    assert "File too large" in refusal


def test_a_picture_that_is_none_is_left_out(run):
    (run / "photograph_a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n")
    assert "photograph_a" not in run_page(run)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.losses", "x"),
        ("bytes.up", "x"),
        ("disturbances", [{"a": 1}]),
        ("config.federation.workers", 10**9),
        ("config.federation.slices", []),
        ("config.data", [1]),
        ("attack.psnr_mean", None),
        ("attack.used", 5),
        ("rounds", 10**400),
        ("seconds.total", float("inf")),
        ("shares", [1, 2]),
        ("defence", [{"worker": 0}]),
        ("seed", [[[]]] * 3),
    ],
)
def test_a_summary_that_is_made_up_ends_with_a_sentence(run, key, value):
    *parts, last = key.split(".")
    tree = at = as_json(load_summary(run))
    for part in parts:
        at = at[part]
    at[last] = value
    (run / "summary.json").write_text(json.dumps(tree))
    _, refusal = outcome(lambda: write_report(run), UserError)
    assert f"{run}/summary.json cannot be shown: " in refusal
    assert not (run / "report.html").exists()


def test_a_summary_that_nests_too_deep_for_the_page_ends_with_a_sentence(run):
    tree = as_json(load_summary(run))
    for _ in range(500):
        tree["config"]["data"] = {"name": "x", "more": tree["config"]["data"]}
    (run / "summary.json").write_text(json.dumps(tree))
    _, refusal = outcome(lambda: write_report(run), UserError)
    assert "it nests deeper than" in refusal


@fuzz
@given(st.data())
def test_any_summary(plain_run, data):
    folder, summary = plain_run
    tree = at = json.loads(json.dumps(summary))
    *parts, last = data.draw(st.sampled_from(list(keys(summary))))
    for part in parts:
        at = at[part]
    at[last] = data.draw(abouts)
    (folder / "summary.json").write_text(json.dumps(tree))
    page, refusal = outcome(lambda: run_page(folder), UserError)
    assert refusal or page.startswith("<!DOCTYPE html>")
    outcome(lambda: export_csv(folder, folder / "csv"), UserError)
    watch = Watch(folder)
    watch.view.final = True
    watch._load()
    watch._compose()


@pytest.mark.parametrize(
    "line",
    [
        "[" * 200_000,
        '{"a":' * 200_000,
        '{"t": 1, "kind": "worker", "id": 1000000000, "state": "joined"}',
        '{"t": 1, "kind": "round", "round": Infinity, "total": 1, "loss": 1, "bytes": {}, "workers": []}',
        '{"t": 1, "kind": "evaluation", "round": 1, "loss": 1, "accuracy": ' + "[" * 900 + "]" * 900 + "}",
        '{"t": 1, "kind": "state", "state": "ended", "reason": ' + "[" * 900 + "]" * 900 + "}",
        '{"t": 1, "kind": "say", "text": "' + "x" * (2 << 20) + '"}',
    ],
)
def test_a_page_goes_on_whatever_a_journal_says(here, line):
    good = '{"t": 1, "kind": "say", "text": "still here"}'
    (here / NAME).write_text(f"{line}\n{good}\n")
    watch = Watch(here)
    with little_memory():
        watch.refresh()
    assert json.loads(watch.text)["said"] == ["still here"]
    assert len(watch.text) < 10_000


@fuzz
@given(st.dictionaries(st.sampled_from(["t", "state", "round", "id", "bytes", "workers", "file"]), abouts), st.data())
def test_any_line_of_a_journal(tmp_path, values, data):
    kinds = ["run", "state", "worker", "round", "evaluation", "step", "estimate", "say", "summary"]
    line = {"t": 1, "kind": data.draw(st.sampled_from(kinds)), **values}
    (tmp_path / NAME).write_text(json.dumps(line) + "\n")
    watch = Watch(tmp_path)
    watch.refresh()
    json.loads(watch.text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_large_journal_is_taken_in_little_by_little(here, monkeypatch):
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 1000)
    monkeypatch.setattr(journal, "LINE_BYTES", 300)
    says = [f'{{"kind": "say", "text": "{number:0{100 + 400 * (number % 7 == 3)}}"}}' for number in range(200)]
    (here / NAME).write_text("\n".join(says) + "\n")
    tail, calls = Tail(here, from_start=True), []
    while lines := tail.read():
        calls.append(len(lines))
        assert sum(len(line["text"]) for line in lines) < 1400
    assert sum(calls) == sum(number % 7 != 3 for number in range(200))
    Journal(here).say("and on")
    assert [line["text"] for line in tail.read()] == ["and on"]


def test_a_journal_without_an_end_of_line_takes_no_memory(here):
    (here / NAME).touch()
    os.truncate(here / NAME, 3 << 29)
    watch = Watch(here)
    with little_memory():
        for _ in range(400):
            watch.refresh()
    with (here / NAME).open("ab") as file:
        file.write(b'\n{"t": 1, "kind": "say", "text": "still here"}\n')
    watch.refresh()
    assert json.loads(watch.text)["said"] == ["still here"]


def test_arrays_that_no_run_writes_are_not_shown(run):
    for arrays in (
        {"x": np.array([["a"]])},
        {"x": np.zeros((3, 1, 0, 4), np.float32)},
        {"x": np.zeros((3, 1, 4, 4), np.float32), "certificates": np.zeros((2, 4))},
        {"x": np.zeros((3, 1, 4, 4), np.float32), "labels": np.zeros(1, np.int64)},
        {"x": np.zeros((3, 1, 4, 4), np.longdouble)},
    ):
        np.savez(run / "recovered.npz", **arrays)
        found = read_run(run)
        assert not found.arrays
        assert found.problem
        assert "What was recovered is not shown" in run_page(run)
