"""A wheel in an empty environment, outside of the repository: whoever installs it gets what the README says.

The fast tests build the wheel and install it by pip, without an index, into a new environment; what it declares to need
is linked there from the tests' own environment, and nothing else is: what the wheel forgets is missing. They do not
show that pip finds and downloads these packages, and their demo is a small one. The slow test shows both.
"""

import contextlib
import csv
import json
import os
import random
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path

import pytest

from tests.deploy.installed_support import LATER, ROOT, Installed, build_wheel, later_python

SMALL = ["--set", "data.samples=16", "--set", "federation.batch_size=4"]


def extras() -> dict[str, list[str]]:
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return tree["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def took():
    """What took how many seconds, in the order in which it was done."""
    return {}


@contextlib.contextmanager
def timed(took, what):
    began = time.monotonic()
    yield
    took[what] = f"{time.monotonic() - began:.1f} s"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, took):
    with timed(took, "the wheel is built"):
        return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def base(wheel, tmp_path_factory, took):
    with timed(took, "it is installed"):
        return Installed(tmp_path_factory.mktemp("base") / "venv", wheel)


def write_table(path, rows=60):
    """A made-up table with a date, words in several alphabets and gaps: whoever is older pays back."""
    draw = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["person", "age", "since", "income €", "Ort", "pays_back"])
        for number in range(rows):
            age = draw.randint(18, 80)
            since = f"20{draw.randint(10, 24)}-0{draw.randint(1, 9)}-15"
            income = "" if draw.random() < 0.1 else 20000 + 400 * age + draw.randint(0, 9999)
            city = draw.choice(["Köln", "Łódź", "東京", ""])
            table.writerow([f"p{number}", age, since, income, city, int(age > 45)])


@pytest.fixture(scope="module")
def demo(base, tmp_path_factory, took):
    """A folder in which the demo was run, in small, by the base installation."""
    folder = tmp_path_factory.mktemp("work")
    with timed(took, "cafe demo, 16 samples"):
        shown = base.cafe("demo", *SMALL, cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert "The coordinator rebuilt 16 of 16 images" in shown.stdout
    assert (folder / "runs" / "demo" / "report.html").exists()
    assert not (folder / "runs" / "demo" / "events").exists()  # which TensorBoard, an extra, would write
    return folder


WHENCE = """
import importlib, os, pkgutil, sys
print(os.environ.get("PYTHONPATH"))
for top in ("attacker", "protos", "server", "vfl", "worker"):
    package = importlib.import_module(top)
    print(package.__file__)
    for found in pkgutil.walk_packages(package.__path__, f"{top}."):
        print(importlib.util.find_spec(found.name).origin)
"""


def test_from_the_wheel_to_a_report_on_a_table_of_ones_own(wheel, base, demo, tmp_path, took, record_property):
    whence = base.python(WHENCE, cwd=tmp_path)
    assert whence.returncode == 0, whence.stderr
    path, *files = whence.stdout.splitlines()
    assert (path, len(files) > 200) == ("None", True)
    assert {Path(file).is_relative_to(base.packages) and not Path(file).is_symlink() for file in files} == {True}
    assert {str(Path(file).relative_to(base.packages)) for file in files} <= base.installed

    own = Installed(tmp_path / "venv", wheel)  # the other tests' has no extra
    own.add_extra("tables")
    write_table(tmp_path / "loans.csv")
    for line in (
        ("init", "loans.csv", "--label", "pays_back", "--workers", 2, "--out", "loans.yaml"),
        ("run", "loans.yaml"),
        ("report", "runs/loans"),
    ):
        with timed(took, f"cafe {line[0]}"):
            ended = own.cafe(*line, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
    summary = json.loads((tmp_path / "runs" / "loans" / "summary.json").read_text())
    assert summary["attack"]["share_exact"] > 0.9
    assert "worker 1" in (tmp_path / "runs" / "loans" / "report.html").read_text()
    for what, seconds in took.items():
        record_property(what, seconds)


MISSING = """
import contextlib, io, vfl
from vfl.cli.app import app
from vfl.errors import CafeError
from worker.alignment import load_library

small = {"data": {"name": "digits", "samples": 20}, "federation": {"workers": 2, "batch_size": 5, "epochs": 1}}
wanted = {
    "ui": lambda: app(["ui", "runs/demo"], standalone_mode=False),
    "ray": lambda: app(["sweep", "experiments/smoke.yaml", "--engine", "ray"], standalone_mode=False),
    "tables": lambda: app(["list", "attacks", "--for", "configs/tables/adult.yaml"], standalone_mode=False),
    "vision": lambda: vfl.simulate(small | {"data": {"name": "mnist", "path": "."}}),
    "dp": lambda: vfl.simulate(small | {"defence": {"name": "dp", "epsilon": 8}}),
    "psi": load_library,
    "mlflow": lambda: app(["export", "runs/demo", "--to", "mlflow"], standalone_mode=False),
}
for extra, use in wanted.items():
    try:
        use()
    except CafeError as error:
        print(extra, error.exit_code, error.code, f"pip install 'cafe-vfl[{extra}]'" in str(error))
"""


def test_what_is_missing_is_named_with_its_extra(base, demo):
    silent = {"tensorboard", "audit"}  # what it would write is left out; `cafe doctor`, and an audit, say so
    told = base.python(MISSING, cwd=demo)
    assert told.returncode == 0, told.stderr
    expected = extras().keys() - {"all", "dev", "docs"} - silent
    assert sorted(told.stdout.splitlines()) == sorted(f"{extra} 2 E11 True" for extra in expected)


def test_what_came_with_the_wheel_is_found_from_any_folder(base, tmp_path):
    listed = base.cafe("list", "configs", cwd=tmp_path)
    assert {line.split()[0] for line in listed.stdout.splitlines()} == {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.yaml")
    }
    mine = tmp_path / "configs" / "digits.yaml"
    mine.parent.mkdir()
    mine.write_text("nonsense: 1\n")
    assert "nonsense: there is no such key" in base.cafe("plan", "configs/digits.yaml", cwd=tmp_path).stderr


def test_the_extra_all_has_every_other_and_no_developers_tools():
    named = extras()
    (whole,) = named["all"]
    assert set(whole.partition("[")[2].strip("]").split(",")) == named.keys() - {"all", "dev", "docs"}


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "changes"), [("pip", []), ("uv", SMALL)])
def test_the_demo_from_a_real_installation(wheel, tmp_path, record_property, tool, changes):
    began = time.monotonic()
    venv.create(tmp_path / "venv", with_pip=tool == "pip")
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "uv", "pip", "install", "--python", str(python)]
    install = [str(python), "-m", "pip", "install"] if tool == "pip" else install
    pinned = ["--quiet", "--constraint", str(ROOT / "constraints.txt"), str(wheel)]
    environment = os.environ | {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    subprocess.run([*install, *pinned], check=True, env=environment)
    installed = time.monotonic()
    line = [str(python.with_name("cafe")), "demo", *changes]
    subprocess.run(line, check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    summary = json.loads((tmp_path / "runs" / "demo" / "summary.json").read_text())
    assert summary["attack"]["share_30db"] > 0.9
    record_property(f"{tool} install", f"{installed - began:.0f} s")
    record_property("cafe demo", f"{time.monotonic() - installed:.0f} s")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", LATER)
def test_a_later_python_runs_the_demo_and_the_tests_of_workers_and_protocol(wheel, tmp_path, version):
    program = later_python(version)
    uv = [sys.executable, "-m", "uv"]
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([*uv, "venv", "--quiet", "--python", program, str(tmp_path / "venv")], check=True)
    install = [*uv, "pip", "install", "--quiet", "--python", str(python), "--constraint", str(ROOT / "constraints.txt")]
    needs = [f"{wheel}[ui,tables,dp]", "grpcio-tools", "hypothesis", "pytest", "pytest-timeout"]
    environment = os.environ | {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    subprocess.run([*install, *needs], check=True, env=environment)
    subprocess.run([str(python.with_name("cafe")), "demo", *SMALL], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert json.loads((tmp_path / "runs" / "demo" / "summary.json").read_text())["attack"]["share_30db"] == 1
    tests = ["tests/worker", "tests/protos", "tests/vfl/test_config.py", "tests/vfl/test_cli_help.py"]
    line = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
