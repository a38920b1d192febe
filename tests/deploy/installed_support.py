"""An environment that holds our wheel and what it declares to need, outside of the repository.

What it needs is linked from where these tests run, found by the wheel's own list: what the list lacks is not there.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.integration.command_support import ENVIRONMENT

ROOT = Path(__file__).parents[2]
SOURCES = ("attacker", "configs", "examples", "experiments", "protos", "server", "vfl", "worker")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
LATER = ("3.12", "3.13")
"""Pythons after the one that the tests run on."""


def later_python(version: str) -> str:
    """Return the path of such a Python; where there is none, skip the test."""
    environment = os.environ | {"PYENV_VERSION": version}
    try:
        line = [f"python{version}", "-c", "import sys; print(sys.executable)"]
        return subprocess.run(line, check=True, capture_output=True, text=True, env=environment).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"there is no Python {version} here")


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the sources: nothing is left in the repository, and nothing old gets in."""
    source = folder / "source"
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source)
    line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*line, str(folder), str(source)], check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


class Installed:
    """The `cafe` of a wheel, with no extra but those that are added."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self._bin = folder / "bin"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        python = str(self._bin / "python")
        line = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*line, str(wheel)], check=True, capture_output=True, text=True)
        self._linked: set[str] = set()
        (metadata,) = self.packages.glob("cafe_vfl-*.dist-info")
        self._ours = Distribution.at(metadata)
        self.installed = {str(file) for file in self._ours.files or []}
        """The files that came from the wheel."""
        self._link_needs(self._ours, frozenset({""}))

    def add_extra(self, extra: str) -> None:
        """Add what an extra brings, as `pip install 'cafe-vfl[extra]'` would."""
        self._link_needs(self._ours, frozenset({extra}))

    def cafe(self, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run its command in a folder."""
        return self._run(["cafe", *map(str, arguments)], cwd)

    def python(self, program: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a program with its Python."""
        return self._run(["python", "-c", program], cwd)

    def _run(self, line: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        own = {key: value for key, value in ENVIRONMENT.items() if not key.startswith(("CAFE_", "PYTHON"))}
        command = [str(self._bin / line[0]), *line[1:]]
        return subprocess.run(command, cwd=cwd, env=own, capture_output=True, text=True, timeout=500)

    def _link_needs(self, of: Distribution, extras: frozenset[str]) -> None:
        for text in of.requires or []:
            wanted = Requirement(text)
            applies = wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras)
            name = re.sub(r"[-_.]+", "-", wanted.name).lower()
            if applies and name not in self._linked:
                self._linked.add(name)
                found = distribution(wanted.name)
                self._link(found)
                self._link_needs(found, frozenset({"", *wanted.extras}))

    def _link(self, found: Distribution) -> None:
        """Link a distribution's folders and files; of a folder that several share, what is in it."""
        site = Path(str(found.locate_file("")))
        for path in {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            shared = (site / path).is_dir() and not (site / path / "__init__.py").exists() and "." not in path
            names = {str(Path(*file.parts[:2])) for file in found.files or [] if file.parts[0] == path}
            for name in names if shared else {path}:
                target = self.packages / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    target.symlink_to(site / name)
