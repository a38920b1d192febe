"""A working folder full of files that are called like our packages, rooms and Python's modules: none is in the way."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.command_support import ENVIRONMENT, cafe

PROJECT = Path(__file__).parents[2]
OURS = ("report", "sweep", "server", "worker", "ui", "bench", "attacker", "protos", "config", "models", "referee")
PYTHONS = ("types", "typing", "queue", "random")

CONFIG = """
seed: 3
data: {name: digits, samples: 24}
federation: {workers: 2, batch_size: 8, epochs: 3}
model: {name: mlp, hidden: [12]}
attack: {name: "my_attack:Mean"}
transcript: true
"""

ATTACK = '''
"""An attack of the user's, with a module of its own beside it."""
import torch

from attacker.interface import Attack, AttackPlugin, Recovery
from my_helper import GREY


class Mean(AttackPlugin):
    """Grey, everywhere."""

    def start(self, setting):
        return Grey(setting)


class Grey(Attack):
    def __init__(self, setting):
        self._setting = setting

    def observe(self, observation):
        pass

    def recover(self, progress):
        slices = tuple(torch.full((self._setting.samples, *box.shape), GREY) for box in self._setting.boxes)
        return Recovery(slices, used=("indices",))
'''

SWEEP = f"""
base: {{{", ".join(CONFIG.split(chr(10))[1:-1])}}}
axes:
  rounds:
    one: {{federation: {{workers: 2, batch_size: 8, epochs: 1}}}}
"""


def program(text: str, folder: Path) -> subprocess.CompletedProcess:
    """A script of the user's in that folder."""
    (folder / "program.py").write_text(text)
    environment = ENVIRONMENT | {"PYTHONPATH": str(PROJECT)}
    return subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    (folder / "run.yaml").write_text(CONFIG)
    (folder / "my_attack.py").write_text(ATTACK)
    (folder / "my_helper.py").write_text("GREY = 0.5\n")
    for name in OURS + PYTHONS:
        (folder / f"{name}.py").write_text(f"raise SystemExit('the file {name}.py was imported')\n")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """A run by `python -m vfl.cli`, with an attack of the user's."""
    done = cafe("run", "run.yaml", "--quiet", "--out", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_every_process_of_a_run_starts_and_finds_the_users_plug_in(run):
    assert '"name": "my_attack:Mean"' in (run / "summary.json").read_text()


@pytest.mark.parametrize(
    "command",
    [
        ["report", "out"],
        ["export", "out"],
        ["attack", "out/transcript", "--quiet", "--set", "attack.name=my_attack:Mean", "--out", "again"],
        ["list"],
        ["plan", "run.yaml"],
        ["doctor"],
        ["certs", "certificates"],
        ["slice", "run.yaml"],
        ["bench", "--help"],
        ["sweep", "sweep.yaml", "--quiet", "--out", "swept"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_works(run, folder, command):
    (folder / "sweep.yaml").write_text(SWEEP)
    done = cafe(*command, cwd=folder)
    assert done.returncode in ((0, 1) if command == ["doctor"] else (0,)), done.stdout + done.stderr
    assert "was imported" not in done.stdout + done.stderr


def test_the_installed_command_works_beside_a_file_called_vfl(folder, tmp_path):
    (tmp_path / "vfl.py").write_text("raise SystemExit('the file vfl.py was imported')\n")
    for name in ("run.yaml", "my_attack.py", "my_helper.py"):
        (tmp_path / name).write_text((folder / name).read_text())
    # what the script `cafe` is: its own folder, and not the working folder, is first on the path
    starter = tmp_path / "bin" / "cafe"
    starter.parent.mkdir()
    starter.write_text("from vfl.cli import main\n\nif __name__ == '__main__':\n    main()\n")
    done = subprocess.run(
        [sys.executable, starter, "run", "run.yaml", "--quiet", "--out", "out"],
        cwd=tmp_path, env=ENVIRONMENT | {"PYTHONPATH": str(PROJECT)}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_python_interface_works_in_a_script_of_that_folder(run, folder):
    for name in PYTHONS:  # these are in Python's own way, before anything of ours runs
        (folder / f"{name}.py").rename(folder / f"{name}.kept")
    try:
        done = program("import vfl\nprint(vfl.run('run.yaml', out='by-script', quiet=True).folder)", folder)
    finally:
        for path in folder.glob("*.kept"):
            path.rename(path.with_suffix(".py"))
    assert (done.stdout, done.stderr) == ("by-script\n", "")


def test_a_plug_in_whose_name_is_taken_is_named(tmp_path):
    (tmp_path / "server.py").write_text("class Mine: ...\n")
    (tmp_path / "run.yaml").write_text(CONFIG)
    done = cafe("run", "run.yaml", "--set", "attack.name=server:Mine", "--out", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert f"({tmp_path / 'server.py'} has the name of {PROJECT / 'server' / '__init__.py'}: rename it)" in done.stderr
