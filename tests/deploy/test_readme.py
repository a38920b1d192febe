"""The README's commands, and those of docs/machines.md, as they stand there: whoever pastes them gets what they say."""

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
MOST_LINES = 120


def sections(page: str = "README.md") -> dict[str, list[list[str]]]:
    """The blocks of commands below each heading of a page."""
    found: dict[str, list[list[str]]] = {}
    for part in re.split(r"^## ", (ROOT / page).read_text(), flags=re.M)[1:]:
        blocks = [block.splitlines() for block in re.findall(r"^```(?:sh)?\n(.*?)^```", part, re.M | re.S)]
        found[part.splitlines()[0]] = blocks
    return found


def environment() -> dict[str, str]:
    return {**ENVIRONMENT, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_the_readme_is_short_and_every_command_in_it_is_run_by_a_test():
    assert len((ROOT / "README.md").read_text().splitlines()) < MOST_LINES
    blocks = {heading: len(blocks) for heading, blocks in sections().items() if blocks}
    assert blocks == {"Two commands": 2, "Your own data": 1}


def test_make_demo_installs_no_developers_tools_and_runs_what_the_wheel_runs():
    demo, test = sections()["Two commands"][0]
    assert (demo.split()[:2], test.split()[:2]) == (["make", "demo"], ["make", "test"])
    line = ["make", "--dry-run", "VENV=nowhere", "demo"]
    told = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "cafe demo --out runs/demo" in told
    assert "dev" not in told


@pytest.mark.slow
def test_the_demo_prints_what_the_readme_shows(tmp_path):
    _, shown = sections()["Two commands"]
    done = subprocess.run(["cafe", "demo"], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    measured = re.compile(r"\d+\.\d s\b|was up to.*|that changes no result|waited on disk;?")
    real = {measured.sub("", line).rstrip() for line in done.stdout.splitlines()}
    assert [line for line in shown if measured.sub("", line).rstrip() not in real] == []


@pytest.mark.slow
def test_a_config_of_ones_own_and_an_attack_on_its_transcript(tmp_path):
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (own,) = sections()["Your own data"]
    (again,) = sections("docs/report.md")["What else is in the folder"]
    for line in (*own, *again):
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    assert (tmp_path / "runs" / "my" / "report.html").exists()
    assert (tmp_path / "runs" / "again" / "summary.json").exists()


@pytest.mark.slow
def test_the_quarter_of_an_hour_goes_as_its_page_says(tmp_path):
    page = (ROOT / "docs" / "quarter.md").read_text()
    (attack,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "my_attack.py").write_text(attack)
    steps = sections("docs/quarter.md")
    printed = ""
    for heading in ("2. A config of your own", "3. The strongest attack", "5. Run it", "6. Compare"):
        done = subprocess.run(
            steps[heading][0][0], shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, f"{heading}: {done.stderr}"
        printed += done.stdout
    said = {line.strip() for line in printed.splitlines()}
    assert [line for line in steps["5. Run it"][1] if line.strip() not in said] == []


def test_a_federation_by_hand_on_two_machines(tmp_path):
    reason = why_no_hosts()
    if reason:
        pytest.skip(f"network namespaces cannot be made here: {reason}")
    blocks = sections("docs/machines.md")["By hand, on two machines"]
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
