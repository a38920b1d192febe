"""What is installed here: results name it, and `cafe doctor` compares it between machines."""

import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path


def versions() -> dict[str, str]:
    """Return the versions of this project, of Python, and of what computes and talks."""
    return {"cafe-vfl": version("cafe-vfl"), "python": platform.python_version()} | {
        name: version(name) for name in ("torch", "grpcio")
    }


def made_with() -> dict[str, str]:
    """Return the versions, and the commit where this code runs from its repository: results carry it."""
    known = commit()
    return versions() | ({"commit": known} if known else {})


@cache
def commit() -> str | None:
    """Return the commit of this code, and whether there is more than is committed; None outside its repository."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # installed, maybe somewhere below another project's repository
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
