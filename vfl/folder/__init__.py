"""A run's folder: its files, each with the module that writes and reads it, and how it is cleared for another run."""

from pathlib import Path

from vfl.files import remove

_FILES = ("summary.json", "recovered.npz", "model.pt", "report.html", "rows.json", "rows.csv")
_FOLDERS: dict[str, tuple[str, ...]] = {"snapshots": ("*.npz",)}
_KEPT_FILES = ("journal.jsonl",)
_KEPT_FOLDERS = {
    "transcript": ("*.safetensors", "meta.json"),
    "checkpoints": ("*.safetensors",),
    "attack": ("state-*.safetensors",),
}
"""What a run leaves in its folder, and what of it a run that is resumed goes on with."""


def clear_run(out: Path, resumed: bool = False, seen: int = 0) -> None:
    """Remove what an earlier run left in a folder, so that nothing of it is taken for this run's.

    A run that is resumed goes on with its journal, transcript and checkpoints, and with the snapshots of those rounds
    that its attack has `seen` and is not shown again.
    """
    for name in (*_FILES, *(() if resumed else _KEPT_FILES)):
        (out / name).unlink(missing_ok=True)
    for path in out.glob("*.png"):
        path.unlink()
    for name, patterns in (_FOLDERS | ({} if resumed else _KEPT_FOLDERS)).items():
        if (out / name).is_symlink():  # what a link in it leads to is not this run's
            (out / name).unlink()
        for path in (path for pattern in patterns for path in (out / name).glob(pattern)):
            if not (name == "snapshots" and path.stem.isdecimal() and int(path.stem) <= seen):
                path.unlink()
    remove(out / "events")
