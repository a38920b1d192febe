"""Docker for the tests: an image of this tree, and federations of containers of which nothing is left."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGE = "cafe-vfl-test"
BASE = "python:3.11-slim"
NOT_NEEDED = shutil.ignore_patterns(".*", "runs", "tests", "wheelhouse", "__pycache__", "*.egg-info")


def docker(*arguments, check=True, **options) -> subprocess.CompletedProcess:
    """Call `docker`."""
    command = ["docker", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, **options)
    assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


def engine_answers() -> bool:
    """Whether there is an engine to run containers, and compose."""
    if shutil.which("docker") is None:
        return False
    return all(docker(*call, check=False).returncode == 0 for call in (["info"], ["compose", "version"]))


def build_image(folder: Path) -> str:
    """Build the image of this tree with the wheels that pip finds here: those that this environment was made of."""
    context = folder / "tree"
    shutil.copytree(ROOT, context, ignore=NOT_NEEDED)
    shutil.copy(ROOT / ".dockerignore", context)
    pip = [sys.executable, "-m", "pip", "download", "--constraint", "constraints.txt", "--dest", "wheelhouse"]
    wanted = [".[dp,ui,tensorboard,vision]", "setuptools>=68", "cyclonedx-bom"]
    done = subprocess.run([*pip, *wanted], capture_output=True, text=True, cwd=context)
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "CAFE_IMAGE": IMAGE, **base_here()}
    docker("compose", "build", "--quiet", cwd=context, env=environment)
    shutil.rmtree(context)
    return IMAGE


def base_here() -> dict[str, str]:
    """Return what names the base image where the engine has a stand-in for it, which no registry gave a digest."""
    found = docker("image", "inspect", "--format", "{{.RepoDigests}}", BASE, check=False)
    return {"CAFE_BASE": BASE} if found.returncode == 0 and found.stdout.strip() == "[]" else {}


def page_lines() -> list[str]:
    """Return the commands that docs/docker.md begins with."""
    section = (ROOT / "docs" / "docker.md").read_text().split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("docker ")]


class Composed:
    """The services of docker-compose.yml as a project of its own."""

    def __init__(self, name: str, config: Path, results: Path, **environment: str) -> None:
        self.project, self.results = f"cafe-test-{name}", results
        own = {"COMPOSE_PROJECT_NAME": self.project, "CAFE_IMAGE": IMAGE, "CAFE_CONFIG": str(config)}
        outside = {key: value for key, value in os.environ.items() if not key.startswith("CAFE_")}
        self._environment = outside | own | {"CAFE_RESULTS": str(results)} | environment

    def __enter__(self) -> "Composed":
        return self

    def __exit__(self, *_: object) -> None:
        files = ("-f", "docker-compose.yml", "-f", "deploy/compose/16.yml")
        self.compose(*files, "down", "--volumes", "--timeout", "0")

    def compose(self, *arguments, check=True) -> subprocess.CompletedProcess:
        """Call `docker compose` for this project, in the folder where a person would."""
        return docker("compose", *arguments, check=check, cwd=ROOT, env=self._environment)

    def say(self, line: str) -> tuple[int, str]:
        """Give a command of docs/docker.md; return its exit code and all that was said."""
        _, compose, *arguments = shlex.split(line, comments=True)
        assert compose == "compose", line
        done = self.compose(*arguments, check=False)
        return done.returncode, done.stdout + done.stderr

    def container(self, service: str) -> str:
        """Return how a service's container is called."""
        return f"{self.project}-{service}-1"

    def inspect(self, service: str) -> dict:
        """Return what the engine knows of a service's container."""
        return json.loads(docker("inspect", self.container(service)).stdout)[0]

    def call(self, service: str, *command, user: str | None = None, check=True) -> subprocess.CompletedProcess:
        """Run a command in a service's container."""
        who = [] if user is None else ["--user", user]
        return docker("exec", *who, self.container(service), *command, check=check)

    def running(self) -> set[str]:
        """Return the services whose containers run."""
        return set(self.compose("ps", "--services", "--filter", "status=running").stdout.split())

    def left(self) -> list[str]:
        """Return every container, volume and network that there still is of this project."""
        label = f"label=com.docker.compose.project={self.project}"
        kinds = (["ps", "--all"], ["volume", "ls"], ["network", "ls"])
        return [word for kind in kinds for word in docker(*kind, "--quiet", "--filter", label).stdout.split()]

    def summary(self) -> dict:
        """Return the summary that lies on this machine."""
        return json.loads((self.results / "summary.json").read_text())
