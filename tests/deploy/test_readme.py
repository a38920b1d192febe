"""The README's commands, as they stand there: whoever copies and pastes them gets what it says."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.hosts_support import Hosts
from tests.integration.command_support import ENVIRONMENT
from vfl.bench.rigs.networks import why_no_hosts

ROOT = Path(__file__).parents[2]
CONFIG = """
data: {name: digits, samples: 60}
federation: {workers: 4, batch_size: 6, epochs: 8}
model: {name: mlp, hidden: [16]}
attack: {name: least_squares}
"""
SHOWN = ["federation", "4", "workers,"]
"""How the one block begins that shows what is printed, word by word."""


def sections() -> dict[str, list[list[str]]]:
    """The blocks of commands below each heading."""
    found: dict[str, list[list[str]]] = {}
    for part in re.split(r"^## ", (ROOT / "README.md").read_text(), flags=re.M)[1:]:
        heading = part.splitlines()[0]
        blocks = [block.strip().splitlines() for block in re.findall(r"^```(?:sh)?\n(.*?)^```", part, re.M | re.S)]
        commands = [block for block in blocks if block[0].split()[:3] != SHOWN]
        if commands:
            found[heading] = commands
    return found


def environment() -> dict[str, str]:
    return {**ENVIRONMENT, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_every_command_of_the_readme_is_run_by_a_test():
    here = {"Two commands": 1, "What you get": 1, "By hand, on two machines": 2}
    elsewhere = {"Docker": 2}  # test_compose.py
    assert {heading: len(blocks) for heading, blocks in sections().items()} == here | elsewhere


def test_the_demo_in_small(tmp_path):
    (demo, test) = sections()["Two commands"][0]
    assert demo.split()[:2] == ["make", "demo"]
    assert test.split()[:2] == ["make", "test"]
    told = subprocess.run(["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True)
    line = next(line for line in told.stdout.splitlines() if "cafe run" in line)
    arguments = shlex.split(line)[1:]
    arguments[arguments.index("--out") + 1] = str(tmp_path)
    small = ["--set", "data.samples=16", "--set", "federation.batch_size=4"]
    done = subprocess.run(
        ["cafe", *arguments, *small], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert "The coordinator rebuilt 16 of 16 images" in done.stdout
    assert len(list(tmp_path.glob("photograph_*.png"))) == 2


@pytest.mark.slow
def test_an_attack_on_a_transcript(tmp_path):
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (block,) = sections()["What you get"]
    for line in block:
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    assert (tmp_path / "runs" / "again" / "summary.json").exists()


def test_a_federation_by_hand_on_two_machines(tmp_path):
    reason = why_no_hosts()
    if reason:
        pytest.skip(f"network namespaces cannot be made here: {reason}")
    blocks = sections()["By hand, on two machines"]
    hosts = Hosts(["first", "second"])
    assert hosts.ipv4["first"] == "192.0.2.10"
    try:
        folders = [tmp_path / name for name in ("first", "second")]
        for folder in folders:
            folder.mkdir()
            (folder / "run.yaml").write_text(CONFIG)
        certs, *parties = blocks[0]
        made = subprocess.run(shlex.split(certs), cwd=folders[0], env=environment(), capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        (folders[1] / "certs").mkdir()
        for file in ("ca.pem", *(f"worker-{m}.{kind}" for m in (2, 3) for kind in ("pem", "key"))):
            shutil.copy(folders[0] / "certs" / file, folders[1] / "certs")
        running = [hosts.cafe("second", *shlex.split(line)[1:], cwd=folders[1]) for line in blocks[1]]
        running += [hosts.cafe("first", *shlex.split(line)[1:], cwd=folders[0]) for line in parties]
        for process in running:
            _, words = process.communicate(timeout=500)
            assert process.returncode == 0, words
        assert (folders[0] / "runs" / "run" / "summary.json").exists()
    finally:
        hosts.close()
