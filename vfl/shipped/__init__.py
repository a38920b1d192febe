"""Configs, sweeps and examples that come with the package: a FILE that is not there is looked for among them.

In the repository they lie beside `vfl/`; setup.py puts them into this folder of a wheel.
"""

from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("configs", "experiments", "examples")


def shipped_root() -> Path:
    """Return the folder in which `configs/` and its like lie: the repository's, or this one of an installed package."""
    here = Path(__file__).parent
    return here if (here / FOLDERS[0]).is_dir() else here.parents[1]


def find_shipped(path: Path) -> Path:
    """Return a path as it stands if there is such a file, otherwise the file of that name that came with the package.

    Only names below `configs/`, `experiments/` and `examples/` are looked for.
    """
    if path.is_absolute() or path.exists() or path.parts[:1] not in [(name,) for name in FOLDERS]:
        return path
    if ".." in path.parts:
        return path
    ours = shipped_root() / path
    return ours if ours.exists() else path


def shipped_files(folder: str) -> Iterator[tuple[str, str]]:
    """Yield each YAML file below one of the folders: its name as a command takes it, and its first comment."""
    root = shipped_root()
    for path in sorted((root / folder).rglob("*.yaml")):
        with path.open(encoding="utf-8") as file:
            first = file.readline().strip()
        yield path.relative_to(root).as_posix(), first.lstrip("# ") if first.startswith("#") else ""
