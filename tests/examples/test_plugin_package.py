"""The example package, installed into an environment of its own, and what its plug-ins' errors look like."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "examples" / "plugin_package"
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("GRPC_", "PYTHON"))}

BROKEN = '''
import torch
from attacker.interface import AttackPlugin, Recovery
from worker.defences import Defence

class Crash(AttackPlugin):
    """Fails when it is to recover."""
    def start(self, setting):
        return self
    def observe(self, observation):
        pass
    def recover(self, progress):
        return 1 / 0

class Odd(Crash):
    """Recovers slices of no shape that fits."""
    def recover(self, progress):
        return Recovery(slices=(torch.zeros(20, 7), torch.zeros(20, 7)))

class Mute(Defence):
    """Forgets to return."""
    def apply(self, gradients, played):
        pass

class Bad(Defence):
    """Fails in its second round."""
    def apply(self, gradients, played):
        if played.number == 2:
            raise KeyError("bottom.weights")
        return gradients
'''


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """An interpreter with the example package and a broken one; all else comes from the environment of the tests."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "env", with_pip=False)
    executable = folder / "env" / "bin" / "python"
    scheme = {"base": str(folder / "env"), "platbase": str(folder / "env")}
    packages = Path(sysconfig.get_path("purelib", "venv", vars=scheme))
    repository, installed = PACKAGE.parents[1], sysconfig.get_path("purelib")
    (packages / "beside.pth").write_text(f"{repository}\nimport site; site.addsitedir({installed!r})\n")
    source = shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", packages, source], check=True, env=ENVIRONMENT)
    (packages / "broken_plugins.py").write_text(BROKEN)
    about = packages / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = "[cafe.attacks]\ncrash = broken_plugins:Crash\nodd = broken_plugins:Odd\nlost = no_such_module:Lost\n"
    points += "[cafe.defences]\nbad = broken_plugins:Bad\nmute = broken_plugins:Mute\n"
    (about / "entry_points.txt").write_text(points)
    return executable


def cafe(python: Path, folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    command = [python, "-m", "vfl.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, env=ENVIRONMENT, cwd=folder)


def test_the_list_shows_every_plugin_with_a_line_and_goes_on_past_a_broken_one(python, tmp_path):
    listed = cafe(python, tmp_path, "list")
    assert listed.returncode == 0, listed.stderr
    lines = {line.split()[0]: line for line in listed.stdout.splitlines()}
    assert {"attacks:", "defences:", "datasets:", "models:", "exact", "dp", "digits", "cafe_cnn"} <= lines.keys()
    for name, words in {
        "class_counts": "Zhao et al. 2020 (iDLG)", "round_off": "Rounds every entry", "moons": "two moons",
        "maxout": "Goodfellow et al. 2013",
    }.items():  # fmt: skip
        assert words in lines[name]
        assert lines[name].endswith("(from the package cafe-example-plugins)")
    assert "'lost' of the package broken (no_such_module:Lost) cannot be imported" in lines["lost"]


def test_all_four_take_part_in_a_run(python, tmp_path):
    ran = cafe(python, tmp_path, "run", PACKAGE / "run.yaml", "--out", tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["attack"]["name"] == "class_counts"
    assert "is more frequent than expected" in summary["attack"]["notes"][0]
    assert summary["defence"][0]["chain"] == [{"name": "round_off"}]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("attack.name=crash", "cafe: the attack plug-in crash failed in recover: ZeroDivisionError: division by zero"),
        ("attack.name=odd", "cafe: the attack plug-in odd failed in recover: slices[0] must be a dense floating-point"),
        ("defence.name=mute", "the defence plug-in mute failed in apply: it must return the tensors by name, not None"),
        ("defence.name=bad", "the defence plug-in bad failed in apply: KeyError: 'bottom.weights' (broken_plugins.py"),
    ],
)
def test_an_error_inside_a_plugin_bears_its_name(python, tmp_path, change, sentence):
    config = tmp_path / "run.yaml"
    config.write_text("data: {name: moons, samples: 20}\nfederation: {workers: 2, batch_size: 5, rounds: 3}\n")
    options = ("--set", "model.name=mlp", "--set", change, "--out", tmp_path / "out", "--quiet")
    ran = cafe(python, tmp_path, "run", config, *options)
    assert ran.returncode == 1
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr


def test_one_that_cannot_be_imported_is_named(python, tmp_path):
    ran = cafe(python, tmp_path, "run", PACKAGE / "run.yaml", "--set", "attack.name=lost", "--out", tmp_path / "out")
    assert ran.returncode == 2
    assert "attack.name: the plug-in 'lost' of the package broken" in ran.stderr
