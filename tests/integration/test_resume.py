"""A coordinator that was killed, stopped or out of disk goes on with --resume, to the numbers of an undisturbed run."""

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.integration.command_support import cafe, wait_for
from tests.integration.federation_support import Federation, assert_same_numbers
from vfl.config import load_config
from vfl.datasets.slices import load_data
from vfl.errors import CafeError, RunFailedError, UserError
from vfl.folder.journal import Tail
from vfl.local.launch import LaunchOptions, run_federation

CONFIG = """
seed: 3
data: {name: digits, samples: 60, test_samples: 20}
federation:
  {workers: 2, batch_size: 10, rounds: 120, label_holder: 1, checkpoint_every: 20, rejoin_timeout: 120,
   round_timeout: 28, silence_timeout: 6}
model: {name: mlp, hidden: [16]}
training: {optimizer: adam, lr: 0.001, evaluate_every: 30}
attack: {name: cafe, switch_one: null, switch_two: null}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("resume") / "run.yaml"
    path.write_text(CONFIG)
    return path


def run(config: Path, out: Path, resume: bool = False, **changes) -> None:
    """`cafe run` without its scores and pictures: a federation in processes."""
    loaded = load_config(config, [f"{key}={value}" for key, value in changes.items()])
    run_federation(loaded, load_data(loaded), out, LaunchOptions(resume=resume))


@pytest.fixture(scope="module")
def undisturbed(config, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    run(config, out)
    return out


def assert_as_if_nothing_had_happened(out, undisturbed):
    """The losses, the model, and what the attack made of the rounds."""
    summary = assert_same_numbers(out, undisturbed)
    found, expected = (np.load(folder / "recovered.npz") for folder in (out, undisturbed))
    for name in ("x", "labels", "cell"):
        np.testing.assert_array_equal(found[name], expected[name])
    return summary


def said(out) -> list[str]:
    """The sentences in a run's journal."""
    with contextlib.closing(Tail(out, from_start=True)) as journal:
        return [line["text"] for line in journal.read() if line["kind"] == "say"]


def kill_coordinator() -> None:
    """Of the processes that listen it is the oldest."""
    listening = [
        process
        for process in psutil.Process().children(recursive=True)
        if any(one.status == psutil.CONN_LISTEN for one in process.net_connections())
    ]
    min(listening, key=lambda process: process.create_time()).kill()


def test_a_run_that_was_killed_goes_on_from_the_last_checkpoint_that_is_whole(config, undisturbed, tmp_path):
    out, ended = tmp_path / "out", []

    def run_and_fail():
        try:
            run(config, out)
        except CafeError as error:
            ended.append(str(error))

    running = threading.Thread(target=run_and_fail)
    running.start()
    wait_for(lambda: (out / "transcript" / "round-0000045.safetensors").exists() or not running.is_alive())
    kill_coordinator()
    running.join()
    assert ended == ["the coordinator ended without a word (exit code -9)"]
    last = max((out / "checkpoints").glob("*.safetensors"))
    damaged = bytearray(last.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    last.write_bytes(damaged)
    run(config, out, resume=True)
    assert any(text.startswith(f"{last} is damaged") for text in said(out))
    summary = assert_as_if_nothing_had_happened(out, undisturbed)
    (gone,) = summary["disturbances"]
    assert gone["reasons"] == [f"the coordinator was resumed from its checkpoint of round {gone['round'] - 1}"]
    assert gone["redone"] >= 20  # a whole interval, as the last checkpoint was lost
    assert len(list((out / "checkpoints").iterdir())) == 2


def test_workers_wait_for_a_coordinator_that_is_killed_or_told_to_end_and_is_resumed(config, undisturbed, tmp_path):
    federation = Federation(config, tmp_path / "out")
    with contextlib.closing(federation):
        workers = [federation.worker(number) for number in range(2)]
        federation.reaches(30)
        federation.server.kill()
        federation.server.wait(30)
        federation.serve("--resume")
        federation.reaches(50)
        federation.server.send_signal(signal.SIGTERM)
        assert federation.server.wait(60) == 130, federation.said
        last = max((federation.out / "checkpoints").glob("*.safetensors"))
        assert stat.S_IMODE(last.stat().st_mode) == 0o600  # it holds the optimiser's state and the indices
        federation.serve("--resume")
        federation.finished()
        words = [worker.communicate(timeout=500)[1] for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0], words
    summary = assert_as_if_nothing_had_happened(federation.out, undisturbed)
    killed, ended = [one for one in summary["disturbances"] if "resumed" in one["reasons"][0]]
    assert killed["round"] % 20 == 1  # after the checkpoint of every twentieth round
    assert ended["round"] > 50
    assert ended["redone"] == 0  # it wrote a checkpoint before it went, and nothing is done again
    assert all(text.count("is back") >= 2 and "Traceback" not in text for text in words), words


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 600 KB; the folder, and what makes it larger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", folder]).returncode:
        pytest.skip("no disk can be mounted here")
    yield folder, lambda: subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_ends_with_a_sentence_and_with_more_room_the_run_goes_on(config, undisturbed, small_disk):
    disk, enlarge = small_disk
    out = disk / "out"
    out.mkdir()
    with pytest.raises(RunFailedError, match=r"out/.* cannot be written or read: No space left on device"):
        run(config, out)
    enlarge()
    run(config, out, resume=True)
    assert_as_if_nothing_had_happened(out, undisturbed)


def test_a_coordinator_that_was_killed_after_the_last_round_needs_no_workers_for_the_rest(
    config, undisturbed, tmp_path
):
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    for name in ("summary.json", "recovered.npz", "model.pt"):
        (out / name).unlink()
    done = cafe("serve", config, "--out", out, "--listen", "127.0.0.1:0", "--resume")
    assert done.returncode == 0, done.stderr
    summary = assert_as_if_nothing_had_happened(out, undisturbed)
    (gone,) = summary["disturbances"]
    assert (gone["round"], gone["redone"]) == (121, 0)


def test_when_an_old_round_is_damaged_the_run_goes_on_without_its_attack_as_the_sentence_says(
    config, undisturbed, tmp_path
):
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    (out / "transcript" / "round-0000001.safetensors").write_bytes(b"damaged")
    command = ("serve", config, "--out", out, "--listen", "127.0.0.1:0", "--resume")
    done = cafe(*command)
    assert done.returncode == 2
    (option, value) = re.search(r"with (--set) '(attack=.*?)'", done.stderr.replace("\n", " ")).groups()
    done = cafe(*command, option, value)
    assert done.returncode == 0, done.stderr
    assert_same_numbers(out, undisturbed)


def test_another_config_is_refused_before_anything_is_touched(config, undisturbed):
    before = (undisturbed / "summary.json").read_bytes()
    with pytest.raises(UserError, match="--resume: seed is 4 in the config and was 3 when"):
        run(config, undisturbed, resume=True, seed=4)
    assert (undisturbed / "summary.json").read_bytes() == before


def test_without_a_checkpoint_the_command_says_so(config, tmp_path):
    done = cafe("serve", config, "--out", tmp_path, "--listen", "127.0.0.1:0", "--resume")
    assert done.returncode == 2
    assert f"cafe: --resume: there is no checkpoint in {tmp_path}/checkpoints" in done.stderr
