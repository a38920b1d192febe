"""`make lock`: what the image installs, with the hash of every file that may be it.

Two lists, as torch from the public index wants NVIDIA's packages and its CPU builds do not. Those builds come from
elsewhere under the same version: wheels in the folders that are named here may be installed too.
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
EXTRAS = ("dp", "ui", "tensorboard", "vision")
"""Of those that deploy/Dockerfile installs."""
CUDA = re.compile(r"nvidia|cuda|triton")
HEAD = "# Made by `make lock` from pyproject.toml and constraints.txt; {0}.\n"


def main(folders: list[str]) -> None:
    """Resolve, add the hashes of the folders' wheels, and write both lists."""
    line = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-header"]
    line += ["--no-annotate", "--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
    line += [option for extra in EXTRAS for option in ("--extra", extra)]
    line += ["--constraint", "constraints.txt", "pyproject.toml", "-"]
    given = {"input": "setuptools>=68\n", "text": True, "cwd": HERE.parent}
    wanted = subprocess.run(line, capture_output=True, check=True, **given).stdout
    wheels = [path for folder in folders for path in sorted(Path(folder).glob("*.whl"))]
    found = re.findall(r"^[^\s#][^\n]*(?:\n    --hash=[^\n]*)*", wanted, re.MULTILINE)
    entries = [_with(entry, wheels) for entry in found]
    lists = {"hashes.txt": "what every build of the image installs", "hashes-cuda.txt": "what torch needs for a GPU"}
    for name, about in lists.items():
        chosen = [entry for entry in entries if bool(CUDA.match(entry)) == ("cuda" in name)]
        (HERE / name).write_text(HEAD.format(about) + "\n".join(chosen) + "\n", encoding="utf-8")


def _with(entry: str, wheels: list[Path]) -> str:
    """Add the hash of a wheel of this package and version, or of its build for another device."""
    name, _, version = entry.split(" ")[0].partition("==")
    for wheel in wheels:
        of, release = wheel.name.split("-")[:2]
        if (of.replace("_", "-").lower(), release.partition("+")[0]) == (name, version):
            entry += f" \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"
    return entry


if __name__ == "__main__":
    main(sys.argv[1:])
