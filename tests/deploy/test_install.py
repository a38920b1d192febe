"""A wheel in an empty environment, outside of the repository: whoever installs it gets what the README says."""

import csv
import json
import os
import random
import subprocess
import sys
import time
import tomllib
import venv

import pytest

from tests.deploy.installed_support import ROOT, Installed, build_wheel

SMALL = ["--set", "data.samples=16", "--set", "federation.batch_size=4"]


def extras() -> dict[str, list[str]]:
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return tree["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def base(wheel, tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("base") / "venv", wheel)


def write_table(path, rows=60):
    """A made-up table: whoever earns more is older, and pays back."""
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["person", "age", "income", "city", "pays_back"])
        for number in range(rows):
            age = draw.randint(18, 80)
            city = draw.choice(["Lyon", "Graz", "Bern"])
            table.writerow([f"p{number}", age, 20000 + 400 * age + draw.randint(0, 9999), city, int(age > 45)])


@pytest.fixture(scope="module")
def demo(base, tmp_path_factory):
    """A folder in which the demo was run, in small, by the base installation."""
    folder = tmp_path_factory.mktemp("work")
    shown = base.cafe("demo", *SMALL, cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert "The coordinator rebuilt 16 of 16 images" in shown.stdout
    return folder


def test_the_base_installation_runs_the_demo_and_writes_its_report(demo):
    assert (demo / "runs" / "demo" / "report.html").exists()
    assert not (demo / "runs" / "demo" / "events").exists()  # which TensorBoard, an extra, would write


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


def test_from_a_table_of_ones_own_to_its_report(base, tmp_path, capsys):
    base.add_extra("tables")
    write_table(tmp_path / "loans.csv")
    lines = [
        ("init", "loans.csv", "--label", "pays_back", "--workers", 2, "--out", "loans.yaml"),
        ("run", "loans.yaml"),
        ("report", "runs/loans"),
    ]
    for line in lines:
        began = time.monotonic()
        ended = base.cafe(*line, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        with capsys.disabled():
            print(f"\ncafe {line[0]}: {time.monotonic() - began:.1f} s")
    summary = json.loads((tmp_path / "runs" / "loans" / "summary.json").read_text())
    assert summary["attack"]["share_exact"] > 0.9
    assert "worker 1" in (tmp_path / "runs" / "loans" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "changes"), [("pip", []), ("uv", SMALL)])
def test_the_demo_from_a_real_installation(wheel, tmp_path, capsys, tool, changes):
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
    with capsys.disabled():
        print(f"\n{tool} install: {installed - began:.0f} s, cafe demo: {time.monotonic() - installed:.0f} s")
