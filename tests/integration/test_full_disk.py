"""A disk that is full while rounds wait for the attack: none is lost; a transcript without room is a sentence."""

import json
import os
import subprocess

import pytest

from tests.integration.command_support import cafe

CONFIG = """
data: {name: digits, samples: 60}
federation: {workers: 2, batch_size: 10, rounds: 60}
model: {name: mlp, hidden: [256]}
attack: {name: "vfl.bench.load:Dawdler", seconds: 0.05}
"""


@pytest.fixture
def small_disk(tmp_path):
    """A disk of three megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")
def test_rounds_that_find_no_room_wait_for_the_attack_and_a_transcript_ends_with_a_sentence(small_disk, tmp_path):
    (tmp_path / "run.yaml").write_text(CONFIG)
    done = cafe("run", tmp_path / "run.yaml", "--out", small_disk / "out", "--quiet")
    assert done.returncode == 0, done.stderr
    summary = json.loads((small_disk / "out" / "summary.json").read_text())
    assert summary["attack"]["notes"][0] == "60"  # each once, and in order
    full = cafe("run", tmp_path / "run.yaml", "--out", small_disk / "full", "--quiet", "--set", "transcript=true")
    assert full.returncode == 1
    assert "transcript/round-" in full.stderr
    assert "No space left on device" in full.stderr
    assert "Traceback" not in full.stderr
