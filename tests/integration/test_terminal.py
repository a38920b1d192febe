"""A run in a real terminal: the live view, the closing words, Ctrl-C, errors; and the same in a pipe."""

import json
import re

import pytest

from tests.integration.command_support import cafe
from tests.integration.terminal_support import WIDTH, Terminal
from vfl.folder.journal import Tail

CONFIG = """
seed: 1
data: {name: digits, samples: 24, test_samples: 20}
federation: {workers: 2, batch_size: 6, epochs: 4, join_timeout: 60, round_timeout: 60}
model: {name: mlp, hidden: [16]}
attack: {name: exact}
snapshots: 8
"""

COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38;5;\d+)(?:;\d+)*m")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("terminal") / "run.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def terminal(tmp_path):
    """Start the command in a terminal that is closed at the end."""
    opened = []

    def start(*arguments, **environment):
        opened.append(Terminal(*arguments, environment=environment))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_a_terminal_shows_the_run_and_its_result(config, tmp_path, terminal):
    out = tmp_path / "out"
    shown = terminal("run", config, "--out", out)
    assert shown.wait() == 0, shown.text
    summary = json.loads((out / "summary.json").read_text())
    words = shown.text
    assert re.search(r"^ended  2 workers, 24 samples, batches of 6 +0:\d\d:\d\d$", words, re.M)
    assert re.search(rf"^rounds +━+ 16/16 0:00:00 left  loss {summary['train']['loss_last']:.4f}$", words, re.M)
    assert re.search(r"^taking apart   ━+ 2/2 +0:00:00 left", words, re.M)
    psnr = summary["attack"]["over_rounds"][-1]["psnr_mean"]
    assert f"the attack has   PSNR {psnr:.1f} dB on average" in words
    assert re.search(r"^ +0  done +16 +\d+\.\d +[\d.]+ KB +[\d.]+ KB$", words, re.M)
    assert "The coordinator rebuilt 24 of 24 images (30 dB or better) from 16 rounds of\ngradients.\n" in words
    assert f"Everything is in {out}"[:WIDTH] in words
    assert COLOUR.search(shown.written)
    assert not shown.screen.cursor.hidden
    assert shown.after == shown.before


def test_ctrl_c_leaves_the_terminal_as_it_was_and_no_color_is_respected(config, tmp_path, terminal):
    out = tmp_path / "out"
    shown = terminal("run", config, "--out", out, "--set", "federation.epochs=100000", NO_COLOR="1")
    shown.wait_for("loss ")
    shown.press_ctrl_c()
    assert shown.wait() == 130
    *_, last = (line for line in shown.text.splitlines() if line.startswith("cafe: "))
    assert last.startswith("cafe: stopped; what was done by then is in")
    assert "Traceback" not in shown.text
    assert not shown.screen.cursor.hidden
    assert shown.after == shown.before
    assert not COLOUR.search(shown.written)
    states = [line for line in Tail(out, from_start=True).read() if line["kind"] == "state"]
    assert (states[-1]["state"], states[-1]["reason"]) == ("ended", "stopped before the end")
    assert list((out / "events").iterdir())


def test_an_error_is_a_sentence_below_the_view(config, tmp_path, terminal):
    waits = ["--set", "federation.join_timeout=1"]
    shown = terminal("serve", config, "--listen", "127.0.0.1:0", "--out", tmp_path / "out", *waits)
    assert shown.wait() == 1
    lines = shown.text.splitlines()
    assert re.match(r"coordinator listening on 127\.0\.0\.1:\d+, waiting for 2 workers$", lines[0])
    assert lines[1].startswith("ended")
    assert [line.split()[:2] for line in lines if "expected" in line] == [["0", "expected"], ["1", "expected"]]
    assert lines[-1] == "cafe: after 1 s workers [0, 1] have not joined [E62]"
    assert not shown.screen.cursor.hidden


def test_in_a_pipe_there_are_plain_lines_and_json_is_all_of_standard_output(config, tmp_path):
    out = tmp_path / "out"
    done = cafe("run", config, "--out", out, "--json", "--set", "transcript=true")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((out / "summary.json").read_text())
    loss = json.loads(done.stdout)["train"]["loss_last"]
    assert f"rounds: 16 of 16  loss {loss:.4f}\n" in done.stderr
    assert "\x1b" not in done.stderr
    assert not (out / "snapshots" / "partial.npz").exists()

    again = cafe("attack", out / "transcript", "--out", tmp_path / "again", "--quiet")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    offline = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert offline["attack"]["psnr_min"] == json.loads(done.stdout)["attack"]["psnr_min"]
