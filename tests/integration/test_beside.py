"""Training and attack side by side in real processes: the numbers of offline, errors in a sentence, no leftovers."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.integration.command_support import cafe, nothing_left, ours, start, wait_for

SLOW = "tests.server.slow_attack:Slow"
PROJECT = Path(__file__).parents[2]


def run_slow(config, out, rounds=20, **options):
    """The command for a run beside the tests' own attack."""
    given = ", ".join(f"{key}: {value}" for key, value in options.items())
    attack = f"attack={{name: '{SLOW}', {given}}}"
    return "run", config, "--out", out, "--set", attack, "--set", f"federation={{batch_size: 6, rounds: {rounds}}}"


def left(pids) -> list[Path]:
    """What the run's processes have left of rounds in memory."""
    return [
        path for pid in pids for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob(f"cafe-rounds-{pid}-*")
    ]


def long_run(config, tmp_path, tag):
    """A run whose attack has begun to look at rounds and falls behind; the pids of all its processes, the attack's."""
    out, pid = tmp_path / "out", tmp_path / "pid"
    process = start(*run_slow(config, out, 100000, seconds=0.3, pid=pid), tag=tag, cwd=PROJECT)
    wait_for(lambda: pid.exists() and pid.read_text() and list((out / "waiting").glob("round-*")))
    pids = [one.pid for one in ours(tag)]
    assert left(pids)
    return process, pids, int(pid.read_text())


def assert_nothing_left(tag, pids, out):
    assert nothing_left(tag)
    assert left(pids) == []
    assert not (out / "waiting").exists()


def test_an_attack_beside_the_training_finds_what_it_finds_offline(config, tmp_path):
    out, again = tmp_path / "out", tmp_path / "again"
    beside = ["--set", "attack={name: cafe, switch_one: null, switch_two: null}", "--set", "training.lr=0.05"]
    few = ["--set", "federation.epochs=2"]
    assert cafe("run", config, "--out", out, "--set", "transcript=true", *beside, *few).returncode == 0
    assert cafe("attack", out / "transcript", "--out", again).returncode == 0
    live, offline = np.load(out / "recovered.npz"), np.load(again / "recovered.npz")
    assert live.files == offline.files
    for name in live.files:
        np.testing.assert_array_equal(live[name], offline[name])


@pytest.mark.slow
def test_a_slow_attack_gets_all_rounds_and_the_summary_says_how_far_it_fell_behind(config, tmp_path):
    out = tmp_path / "out"
    done = cafe(*run_slow(config, out, seconds=0.3), cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    attack = json.loads((out / "summary.json").read_text())["attack"]
    assert [note.split()[0] for note in attack["notes"][:-1]] == [str(number) for number in range(1, 21)]
    assert 0 < attack["queue"]["spilled"] < attack["queue"]["longest"] + 20
    assert "attack's lag" in done.stdout
    assert not (out / "waiting").exists()


@pytest.mark.parametrize("where", ["observe", "recover"])
@pytest.mark.slow
def test_what_an_attack_has_to_say_ends_the_run_with_its_sentence(config, tmp_path, where):
    out = tmp_path / "out"
    done = cafe(*run_slow(config, out, fails=where), cwd=PROJECT)
    assert done.returncode == 2
    assert f"cafe: attack slow: it was told to fail in {where} [E21]\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((out / "summary.json").read_text())["ended"] == f"attack slow: it was told to fail in {where}"


@pytest.mark.slow
def test_when_the_attack_is_killed_the_run_ends_with_a_sentence(config, tmp_path):
    process, pids, attack = long_run(config, tmp_path, tag := f"attack-killed-{os.getpid()}")
    os.kill(attack, signal.SIGKILL)
    _, words = process.communicate(timeout=500)
    assert process.returncode == 1
    assert "cafe: the attack's process ended without a word" in words
    assert "Traceback" not in words
    assert_nothing_left(tag, pids, tmp_path / "out")


@pytest.mark.slow
def test_ctrl_c_leaves_no_round_behind(config, tmp_path):
    process, pids, _ = long_run(config, tmp_path, tag := f"beside-stopped-{os.getpid()}")
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=500)
    assert process.returncode == 130
    assert "Traceback" not in words
    assert_nothing_left(tag, pids, tmp_path / "out")


@pytest.mark.slow
def test_the_attack_clears_up_after_a_coordinator_that_was_killed(config, tmp_path):
    process, pids, _ = long_run(config, tmp_path, tag := f"beside-orphan-{os.getpid()}")
    coordinator = int(left(pids)[0].name.split("-")[2])
    psutil.Process(coordinator).kill()
    process.communicate(timeout=500)
    assert process.returncode == 1
    assert_nothing_left(tag, pids, tmp_path / "out")


def test_without_an_attack_there_is_no_process_for_one(config, tmp_path):
    out = tmp_path / "out"
    tag = f"no-attack-{os.getpid()}"
    changes = ["--set", "attack={name: none}", "--set", "federation={batch_size: 6, rounds: 100000}"]
    process = start("run", config, "--out", out, *changes, "--set", "transcript=true", tag=tag)
    wait_for(lambda: (out / "transcript" / "round-0000003.safetensors").exists())
    children = [one for one in ours(tag) if "forkserver" in " ".join(one.cmdline())]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=500)
    assert len(children) == 1 + 1 + 4  # the fork server, the coordinator, the workers
    assert nothing_left(tag)
