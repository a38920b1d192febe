"""The `cafe` command as a person uses it: real processes, exit codes, words, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
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


def cafe(*arguments, **options) -> subprocess.CompletedProcess:
    return subprocess.run([*CAFE, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)


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
    done = cafe("run", config, "--out", out, "--set", "transcript=true")
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


def start(*arguments, tag: str) -> subprocess.Popen:
    environment = {**os.environ, "CAFE_TEST_TAG": tag}
    return subprocess.Popen(
        [*CAFE, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


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
        (["work", "CONFIG", "--id", "9", "--coordinator", "127.0.0.1:1"], "workers of this federation are 0 to 3"),
        (["work", "CONFIG", "--id", "0", "--coordinator", "here"], "expected HOST:PORT"),
        (["serve", "CONFIG", "--listen", "203.0.113.7:1"], "cannot be bound"),
        (["attack", "nowhere"], "nowhere is not a transcript"),
        (["list", "birds"], "choose one of attacks, defences, datasets, models"),
        (["bench", "tea"], "choose one of federation, attack"),
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
