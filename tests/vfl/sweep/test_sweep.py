"""`cafe sweep` as a person uses it: real runs, what is kept, what is run again, and nothing left behind."""

import csv
import json
import os
import signal
import subprocess
import sys

import pytest

from tests.integration.command_support import cafe, nothing_left, ours, start, wait_for
from tests.vfl.sweep.fabricated import TRAINING, write_sweep
from vfl.sweep.cell import finished, run_cell
from vfl.sweep.plan import load_plan

BROKEN = """
from attacker.interface import AttackPlugin

class Broken(AttackPlugin):
    def start(self, setting):
        return self
    def observe(self, observation):
        pass
    def recover(self, progress):
        raise KeyError("a bug")
"""
ATTACKS = {
    "training": TRAINING,
    "broken": {"attack": {"name": "broken_attack:Broken"}},
    "squares": {"attack": {"name": "least_squares"}, "federation.epochs": 10},
}
ENDLESS = {"federation.rounds": 1000000, "transcript": True}
TABLES = ("results.csv", "results.json", "table.md", "heatmap.png")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep of three cells, one of which fails."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "broken_attack.py").write_text(BROKEN)
    write_sweep(folder, axes={"attack": ATTACKS})
    return folder, sweep_in(folder)


def sweep_in(folder) -> subprocess.CompletedProcess:
    process = start("sweep", "grid.yaml", "--out", "out", tag="sweep", cwd=folder)
    words = process.communicate(timeout=500)
    return subprocess.CompletedProcess(process.args, process.returncode, *words)


def rows_in(out):
    with (out / "results.csv").open() as file:
        return {row["cell"]: row for row in csv.DictReader(file)}


def test_a_failed_cell_is_a_row_and_not_the_end(swept):
    folder, done = swept
    assert done.returncode == 1, done.stderr
    assert "1 of 3 cells failed (broken)" in done.stderr.splitlines()[-1]
    rows = rows_in(folder / "out")
    assert [row["ended"] for row in rows.values()] == ["complete", "failed", "complete"]
    told = "the attack plug-in broken_attack:Broken failed in recover: KeyError: 'a bug' (broken_attack.py, line 10)"
    assert rows["broken"]["error"] == told
    assert told in (folder / "out/cells/broken/log.txt").read_text()
    assert "Traceback" not in done.stderr


def test_the_tables_hold_what_the_summaries_say(swept):
    folder, done = swept
    rows = rows_in(folder / "out")
    summary = json.loads((folder / "out/cells/squares/summary.json").read_text())
    assert float(rows["squares"]["attack.psnr_mean"]) == summary["attack"]["psnr_mean"] > 60
    assert rows["squares"]["attack.used"] == "indices parameters gradients"
    assert int(rows["training"]["rounds"]) == 20
    tree = json.loads((folder / "out/results.json").read_text())
    assert tree["rows"][2]["config"] == summary["config"]
    assert "| broken | failed |" in (folder / "out/table.md").read_text()
    assert "squares" in done.stdout
    assert (folder / "out/heatmap.png").stat().st_size > 0
    assert [line.split("  ")[0] for line in done.stderr.splitlines()[:-1]] == [f"cell {n} of 3" for n in (1, 2, 3)]


def test_the_same_command_runs_only_what_is_not_done_and_gives_the_same_tables(swept):
    folder, _ = swept
    out = folder / "out"
    before = {name: (out / name).read_bytes() for name in TABLES}
    runs = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/log.txt")}
    (folder / "broken_attack.py").write_text(BROKEN.replace('raise KeyError("a bug")', "raise KeyError('a ' + 'bug')"))
    again = sweep_in(folder)
    assert "2 of 3 cells are there already" in again.stderr
    assert {name: (out / name).read_bytes() for name in TABLES} == before
    repeated = [path.parent.name for path, at in runs.items() if path.stat().st_mtime_ns != at]
    assert repeated == ["broken"]


def test_where_runs_the_chosen_cells_and_the_table_says_that_the_others_were_not_run(tmp_path):
    attack = {"training": TRAINING, "here, too": {**TRAINING, "attack": {"name": "none"}}}
    away = {"attack": {"name": "none"}, "data": {"name": "npz", "path": "nowhere.npz"}}  # not looked at
    write_sweep(
        tmp_path,
        axes={"attack": attack | {"away": away}, "seed": [0, 1, 2]},
        table={"rows": ["attack"], "columns": ["seed"], "value": "train.loss_end"},
    )
    chosen = ("--where", "attack=here, too", "--where", "seed=0", "--where", "seed = 2")
    done = cafe("sweep", "grid.yaml", "--out", "out", *chosen, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cell 2 of 2" in done.stderr
    assert set(rows_in(tmp_path / "out")) == {"here, too, 0", "here, too, 2"}
    lines = (tmp_path / "out/table.md").read_text().splitlines()
    assert [line.count("not run") for line in lines if line.startswith(("| training", "| here", "| away"))] == [3, 1, 3]
    wrong = {
        "seed=5": "--where seed=5: seed has no value '5', choose one of 0 | 1 | 2",
        "sead=1": "--where sead=1: give AXIS=VALUE with one of the axes attack, seed",
    }
    for where, sentence in wrong.items():
        refused = cafe("sweep", "grid.yaml", "--where", where, cwd=tmp_path)
        assert (refused.returncode, sentence in refused.stderr) == (2, True), refused.stderr


def test_only_a_complete_run_of_an_equal_config_counts_as_done(swept, tmp_path):
    folder, _ = swept
    (cell,) = (cell for cell in load_plan(folder / "grid.yaml").cells if cell.name == "squares")
    whole = json.loads((folder / "out/cells/squares/summary.json").read_text())

    def is_done(config=cell.config, **changes) -> bool:
        (tmp_path / "summary.json").write_text(json.dumps(whole | changes))
        return finished(config, tmp_path) is not None

    assert is_done()
    assert not is_done(config=cell.config.model_copy(update={"seed": 9}))
    assert not is_done(ended="stopped before the end")
    unscored = {key: value for key, value in whole["attack"].items() if key != "over_rounds"}
    (tmp_path / "recovered.npz").touch()
    assert not is_done(attack=unscored)
    (tmp_path / "summary.json").write_text("{")
    assert finished(cell.config, tmp_path) is None


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_leaves_no_process(swept, tmp_path):
    file = write_sweep(tmp_path, axes={"length": {"short": TRAINING, "endless": ENDLESS, "never": {**ENDLESS}}})
    out, tag = tmp_path / "out", f"sweep-{os.getpid()}"
    process = start("sweep", file, "--out", out, "--jobs", 1, tag=tag, start_new_session=True)
    wait_for(lambda: (out / "cells/endless/transcript/round-0000003.safetensors").exists(), 200)
    assert len(ours(tag)) >= 5
    os.killpg(process.pid, signal.SIGINT)  # a terminal signals the whole group
    _, words = process.communicate(timeout=500)
    assert process.returncode == 130, words
    assert "stopped with 1 of 3 cells done" in words
    assert "Traceback" not in words
    assert nothing_left(tag)
    rows = rows_in(out)
    assert list(rows) == ["short"]
    assert json.loads((out / "cells/endless/summary.json").read_text())["rounds"] >= 3
    assert not (out / "cells/never").exists()
    # The very same run as in the other sweep: all numbers but the times agree.
    twin = rows_in(swept[0] / "out")["training"]
    for key in ("train.loss_first", "train.loss_last", "train.loss_end", "train.test_accuracy", "rounds"):
        assert rows["short"][key] == twin[key] != ""


@pytest.mark.slow
def test_a_sweep_that_is_killed_leaves_no_process(tmp_path):
    file, tag = write_sweep(tmp_path, cells={"endless": ENDLESS}), f"killed-{os.getpid()}"
    process = start("sweep", file, "--out", tmp_path / "out", tag=tag)
    wait_for(lambda: (tmp_path / "out/cells/endless/transcript/round-0000003.safetensors").exists(), 200)
    process.kill()
    process.communicate(timeout=500)
    assert nothing_left(tag, 60)


def test_a_cell_that_another_sweep_runs_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("vfl.sweep.cell.PATIENCE_SECONDS", 0.2)
    config = load_plan(write_sweep(tmp_path, cells={"one": {}})).cells[0].config
    (tmp_path / "log.txt").write_text("the other's words")
    program = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", program, str(tmp_path / "log.txt")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        other.stdout.readline()
        row = run_cell(config, tmp_path)
        other.communicate("\n")
    assert "another sweep still runs this cell" in row.error
    assert (tmp_path / "log.txt").read_text() == "the other's words"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "options", "words"),
    [
        ({"axes": {"seed": [0]}, "tabel": {}}, [], "grid.yaml: tabel: there is no such key"),
        (
            {"axes": {"federation.workers": [2, 0]}},
            [],
            "federation.workers: input should be greater than or equal to 1",
        ),
        ({"axes": {"seed": [0]}}, ["--set", "sed"], "--set sed: expected key=value"),
        ({"axes": {"seed": [0]}}, ["--jobs", "0"], "--jobs"),
        ({"axes": {"seed": [0]}}, ["--out", "/proc/nothing"], "--out /proc/nothing"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(tmp_path, keys, options, words):
    done = cafe("sweep", write_sweep(tmp_path, **keys).name, *options, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert words in done.stderr
    assert not list(tmp_path.glob("runs/grid/*"))
