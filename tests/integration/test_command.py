"""The `cafe` command as a person uses it: real processes, exit codes, words, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.support import assert_same
from vfl.transcript import Transcript

CONFIG = """
seed: 1
data: {name: digits, samples: 60, test_samples: 20}
federation: {workers: 4, batch_size: 6, epochs: 8, join_timeout: 60, round_timeout: 60}
model: {name: mlp, hidden: [16]}
attack: {name: least_squares}
"""
CAFE = [sys.executable, "-m", "vfl.cli"]


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


# What the test's own imports put into the environment must not reach the command.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_")}


def cafe(*arguments, **options) -> subprocess.CompletedProcess:
    command = [*CAFE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, **options)


def ours(tag: str) -> list[psutil.Process]:
    """All processes that carry the tag in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CAFE_TEST_TAG") == tag and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def nothing_left(tag: str, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not ours(tag):
            return True
        time.sleep(0.1)
    return False


def test_run_scores_the_attack_and_writes_the_folder(config, tmp_path):
    out = tmp_path / "out"
    done = cafe("run", config, "--out", out, "--set", "transcript=true", "--set", "snapshots=40")
    assert done.returncode == 0, done.stderr
    assert "rebuilt 60 of 60 images" in done.stdout
    assert str(out) in done.stdout.replace("\n", "")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["workers"] == 4
    assert summary["samples"] == 60
    assert summary["rounds"] == 80
    assert set(summary["seconds"]) == {"total", "federation", "attack"}
    assert summary["bytes"]["up"] > 0 < summary["bytes"]["peer"]
    assert summary["attack"]["used"] == ["indices", "parameters", "gradients"]
    assert summary["attack"]["psnr_min"] > 60 > summary["attack"]["psnr_baseline"]
    (snapshot,) = summary["attack"]["over_rounds"]  # after 40 rounds the samples are not determined yet
    assert (snapshot["round"], snapshot["psnr_mean"]) == (80, summary["attack"]["psnr_mean"])
    assert 0 <= summary["train"]["test_accuracy"] <= 1
    arrays = np.load(out / "recovered.npz")
    assert arrays["x"].shape == arrays["x_true"].shape == (60, 1, 8, 8)
    assert np.abs(arrays["x"] - arrays["x_true"]).max() < 1e-3
    assert (out / "recovered.png").stat().st_size > 0
    assert list((out / "events").iterdir())

    again = cafe("attack", out / "transcript", "--out", tmp_path / "offline")
    assert again.returncode == 0, again.stderr
    offline = json.loads((tmp_path / "offline" / "summary.json").read_text())
    assert offline["attack"]["psnr_min"] == summary["attack"]["psnr_min"]


def start(*arguments, tag: str, **options) -> subprocess.Popen:
    environment = {**ENVIRONMENT, "CAFE_TEST_TAG": tag}
    command = [*CAFE, *map(str, arguments)]
    pipe = subprocess.PIPE
    # Tests run in a shell's background begin with Ctrl-C ignored, and would pass that on.
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, preexec_fn=_heed_ctrl_c, **options
    )


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def long_run(config, out, tag):
    """A run that goes on for long, once its first round is on disk."""
    process = start(
        "run", config, "--out", out, "--set", "federation.epochs=100000", "--set", "transcript=true", tag=tag
    )
    wait_for(lambda: (out / "transcript" / "round-0000003.safetensors").exists())
    return process


def test_ctrl_c_stops_everything_and_keeps_what_is_done(config, tmp_path):
    out = tmp_path / "out"
    process = long_run(config, out, tag := f"interrupt-{os.getpid()}")
    assert len(ours(tag)) >= 6
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped" in words
    assert "Traceback" not in words
    assert nothing_left(tag)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ended"] != "complete"
    assert summary["rounds"] >= 3
    assert len(list(Transcript(out / "transcript"))) >= 3


PLUGIN = """
import time
from pathlib import Path
from attacker.interface import AttackPlugin, Recovery

class Odd(AttackPlugin):
    where: str
    def start(self, setting):
        self.__dict__["seen"] = 0
        return self
    def observe(self, observation):
        if self.where == "observe" and observation.round == 3:
            raise KeyError("a bug")
    def recover(self, progress):
        Path("recovering").touch()
        if self.where == "recover":
            raise KeyError("a bug")
        time.sleep(60)
        return Recovery()
"""


def odd(config, where):
    (config.parent / "odd_attack.py").write_text(PLUGIN)
    return ["run", config, "--out", "out", "--set", f"attack={{name: 'odd_attack:Odd', where: {where}}}"]


@pytest.mark.parametrize("where", ["observe", "recover"])
def test_a_bug_in_an_attack_does_not_lose_what_is_done(config, tmp_path, where):
    done = cafe(*odd(config, where), cwd=tmp_path)
    assert done.returncode == 1
    assert "internal error: KeyError: 'a bug'" in done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert "a bug" in summary["ended"]
    assert summary["rounds"] >= 3


def test_ctrl_c_on_the_terminal_during_recovery_keeps_the_rounds(config, tmp_path):
    tag = f"recovery-{os.getpid()}"
    process = start(*odd(config, "nowhere"), tag=tag, cwd=tmp_path, start_new_session=True)
    wait_for(lambda: (tmp_path / "recovering").exists())
    os.killpg(process.pid, signal.SIGINT)  # a terminal signals the whole group
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in words
    assert nothing_left(tag)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rounds"] == 80


def test_ctrl_c_in_the_middle_of_an_import_ends_with_the_exit_code_of_ctrl_c(tmp_path):
    # Modules run `exec` as they are imported (dataclasses do); Python treats a Ctrl-C there in a way of its own.
    program = """
import os, signal
import vfl.cli
vfl.cli.app = lambda standalone_mode: exec("os.kill(os.getpid(), signal.SIGINT)")
vfl.cli.main()
"""
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "program"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (130, "cafe: stopped\n")


@pytest.mark.parametrize("after", [0.1, 0.6, 1.2, 2.0])
def test_ctrl_c_while_everything_starts_ends_quietly(config, tmp_path, after):
    tag = f"early-{after}-{os.getpid()}"
    process = start(
        "run", config, "--out", tmp_path / "out", "--set", "federation.epochs=100000", tag=tag, start_new_session=True
    )
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    _, words = process.communicate(timeout=60)
    if after > 0.5:  # before that Python itself is still starting, and ends as Python does
        assert process.returncode == 130, words
        assert "Traceback" not in words
    assert nothing_left(tag)


def test_sigterm_cleans_up_as_ctrl_c_does(config, tmp_path):
    out = tmp_path / "out"
    before = set(Path(tempfile.gettempdir()).glob("cafe-slices-*"))
    process = long_run(config, out, tag := f"term-{os.getpid()}")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert nothing_left(tag)
    assert json.loads((out / "summary.json").read_text())["rounds"] >= 3
    assert set(Path(tempfile.gettempdir()).glob("cafe-slices-*")) <= before


def test_a_worker_that_waits_for_its_coordinator_can_be_stopped(config):
    process = start("work", config, "--id", 0, "--coordinator", "127.0.0.1:9", tag="waiting")
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "cafe: stopped" in words


def test_a_folder_used_again_holds_the_new_run_only(config, tmp_path):
    out = tmp_path / "out"
    assert cafe("run", config, "--out", out, "--set", "transcript=true").returncode == 0
    changes = ["--set", "attack.name=none", "--set", "federation.epochs=1", "--set", "seed=9"]
    again = cafe("run", config, "--out", out, *changes)
    assert again.returncode == 0
    assert "No attack was run" in again.stdout
    assert not (out / "recovered.npz").exists()
    assert not list(out.glob("transcript/*"))
    assert json.loads((out / "summary.json").read_text())["attack"]["psnr_mean"] is None


def test_a_coordinator_that_cannot_start_leaves_the_folder_alone(config, tmp_path):
    (tmp_path / "summary.json").write_text("mine")
    assert cafe("serve", config, "--listen", "203.0.113.7:1", "--out", tmp_path).returncode == 2
    assert (tmp_path / "summary.json").read_text() == "mine"


def test_slices_cut_beforehand_will_do(config, tmp_path):
    made = cafe("slice", config, "--out", tmp_path / "slices").stdout.split()
    assert [Path(path).name for path in made] == [f"worker-{m}.safetensors" for m in range(4)]
    changes = ["--set", "data={name: npz, path: nowhere.npz}", "--set", "attack.name=none"]
    serve = start("serve", config, "--listen", "127.0.0.1:0", "--out", tmp_path / "o", *changes, tag="slices")
    address = re.search(r"listening on (\S+),", serve.stderr.readline()).group(1)
    workers = [
        start("work", config, "--id", m, "--coordinator", address, "--data", made[m], *changes, tag="slices")
        for m in range(4)
    ]
    for process in (serve, *workers):
        _, words = process.communicate(timeout=120)
        assert process.returncode == 0, words


def test_a_worker_with_another_model_says_so(config, tmp_path):
    changes = ["--set", "federation.workers=2", "--set", "attack.name=none"]
    serve = start("serve", config, "--listen", "127.0.0.1:0", "--out", tmp_path / "o", *changes, tag="model")
    address = re.search(r"listening on (\S+),", serve.stderr.readline()).group(1)
    worker = start("work", config, "--id", 0, "--coordinator", address, *changes, tag="model")
    other = cafe("work", config, "--id", 1, "--coordinator", address, *changes, "--set", "model.hidden=[17]")
    assert other.returncode == 1
    assert "is the config's model section the same on both?" in other.stderr
    assert "Traceback" not in other.stderr
    for process in (serve, worker):
        _, words = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "worker 1 left" in words


def role(name: str, tag: str) -> psutil.Process:
    """A process of a run by what it does: of those that listen, the coordinator started first."""
    listening = [p for p in ours(tag) if any(c.status == psutil.CONN_LISTEN for c in p.net_connections())]
    oldest, *others = sorted(listening, key=lambda process: process.create_time())
    return oldest if name == "coordinator" else others[-1]


@pytest.mark.parametrize("name", ["worker", "coordinator"])
def test_when_a_process_is_killed_the_run_ends_with_a_sentence_and_nothing_is_left(config, tmp_path, name):
    out = tmp_path / "out"
    process = long_run(config, out, tag := f"kill-{name}-{os.getpid()}")
    role(name, tag).kill()
    _, words = process.communicate(timeout=90)
    assert process.returncode == 1
    assert re.search(r"cafe: (worker \d left in round \d+|the coordinator ended without a word)", words), words
    assert "Traceback" not in words
    assert nothing_left(tag)


def test_when_the_command_itself_is_killed_nothing_is_left(config, tmp_path):
    process = long_run(config, tmp_path / "out", tag := f"orphan-{os.getpid()}")
    process.kill()
    process.communicate(timeout=60)
    assert nothing_left(tag)


def by_hand(config, folder, order, tag):
    """`cafe serve` and `cafe work` in separate processes, the workers started in a given order."""
    serve = start(
        "serve", config, "--listen", "127.0.0.1:0", "--out", folder, "--referee", "--set", "transcript=true", tag=tag
    )
    line = serve.stderr.readline()
    address = re.search(r"listening on (\S+),", line).group(1)
    workers = []
    for worker in order:
        workers.append(start("work", config, "--id", worker, "--coordinator", address, "--threads", 1, tag=tag))
        time.sleep(0.3)
    words, _ = serve.communicate(timeout=120)
    assert serve.returncode == 0
    for process in workers:
        process.communicate(timeout=60)
        assert process.returncode == 0
    return words, list(Transcript(folder / "transcript"))


def test_by_hand_in_any_order_gives_the_same_numbers(config, tmp_path):
    words, first = by_hand(config, tmp_path / "a", [0, 1, 2, 3], f"hand-{os.getpid()}")
    assert "rebuilt 60 of 60 images" in words
    _, second = by_hand(config, tmp_path / "b", [3, 1, 2, 0], f"hand-{os.getpid()}")
    assert_same(first, second)


def test_a_worker_with_other_samples_is_told_so_and_the_right_one_may_follow(config, tmp_path):
    tag = f"digest-{os.getpid()}"
    changes = ["--set", "federation.workers=2", "--set", "attack.name=none"]
    serve = start("serve", config, "--listen", "127.0.0.1:0", "--out", tmp_path / "o", *changes, tag=tag)
    address = re.search(r"listening on (\S+),", serve.stderr.readline()).group(1)
    first = start("work", config, "--id", 0, "--coordinator", address, *changes, tag=tag)
    wait_for(
        lambda: any(
            c.status == psutil.CONN_ESTABLISHED for p in ours(tag) if p.pid == first.pid for c in p.net_connections()
        )
    )
    time.sleep(1)
    wrong = cafe("work", config, "--id", 1, "--coordinator", address, *changes, "--set", "data.samples=50")
    assert wrong.returncode == 1
    assert "refused worker 1: worker 1 holds 50 samples" in wrong.stderr
    right = cafe("work", config, "--id", 1, "--coordinator", address, *changes)
    assert right.returncode == 0, right.stderr
    for process in (serve, first):
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert nothing_left(tag)


def test_nobody_at_the_coordinators_address(config):
    done = cafe("work", config, "--id", 0, "--coordinator", "127.0.0.1:9", "--set", "federation.join_timeout=1")
    assert done.returncode == 1
    assert "nobody answers at 127.0.0.1:9" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["run", "CONFIG", "--set", "federation.wrkers=3"], "federation.wrkers: there is no such key"),
        (["run", "CONFIG", "--set", "attack.name=magic"], "there is no attack called 'magic'"),
        (["run", "CONFIG", "--set", "model.hiden=3"], "model.hiden: there is no such key"),
        (["run", "CONFIG", "--set", "defence.name=wall"], "there is no defence called 'wall'"),
        (["run", "CONFIG", "--set", "federation.epochs=2"], "need 7 epochs"),
        (["run", "CONFIG", "--set", "training.lr=0.1"], "needs frozen parameters"),
        (["run", "CONFIG", "--set", "federation.batch_size=61"], "61 is more than the 60 samples"),
        (["run", "CONFIG", "--set", "federation.workers=17"], "cannot be divided among 17 workers"),
        (
            ["run", "CONFIG", "--set", "model={name: cafe_cnn}", "--set", "data.name=breast_cancer"],
            "use mlp for tables",
        ),
        (["run", "CONFIG", "--out", "/proc/nothing"], "--out /proc/nothing"),
        (["run"], "Missing argument 'FILE'"),
        (["run", "CONFIG", "--set", "training.lr=.inf"], "training.lr"),
        (["run", "CONFIG", "--set", "device=banana"], "device: 'banana' is not to be had here"),
        (["run", "CONFIG", "--set", "attack.name=vfl.models.mlp:MLP"], "is not a plug-in class"),
        (["work", "CONFIG", "--id", "0", "--coordinator", "127.0.0.1:1", "--listen", "0.0.0.0:0"], "--advertise"),
        (["work", "CONFIG", "--id", "9", "--coordinator", "127.0.0.1:1"], "workers of this federation are 0 to 3"),
        (["work", "CONFIG", "--id", "0", "--coordinator", "here"], "expected HOST:PORT"),
        (["serve", "CONFIG", "--listen", "203.0.113.7:1"], "cannot be bound"),
        (["attack", "nowhere"], "nowhere is not a transcript"),
        (["list", "birds"], "choose one of attacks, defences, datasets, models"),
        (["bench", "tea"], "choose one of federation, attack, matching"),
        (["brew"], "No such command 'brew'"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(config, arguments, words, tmp_path):
    done = cafe(*[str(config) if a == "CONFIG" else a for a in arguments], cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("attacks", ["least_squares", "none"]),
        ("defences", ["none"]),
        ("datasets", ["breast_cancer", "cifar10", "digits", "mnist", "npz", "photos"]),
        ("models", ["cafe_cnn", "mlp"]),
    ],
)
def test_list_shows_what_a_config_can_name(kind, names):
    listed = cafe("list", kind).stdout
    assert set(names) <= {line.split()[0] for line in listed.splitlines() if not line.startswith(" ")}
