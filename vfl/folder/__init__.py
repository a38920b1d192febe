"""A run's folder: its files, each with the module that writes and reads it, and how it is cleared for another run."""

from pathlib import Path
from typing import TYPE_CHECKING

from vfl.files import remove

if TYPE_CHECKING:
    from vfl.config import RunConfig

_FILES = ("summary.json", "recovered.npz", "model.pt", "report.html", "rows.json", "rows.csv")
_FOLDERS: dict[str, tuple[str, ...]] = {"snapshots": ("*.npz",)}
_KEPT_FILES = ("journal.jsonl",)
_KEPT_FOLDERS = {"transcript": ("*.safetensors", "meta.json"), "checkpoints": ("*.safetensors",)}
"""What a run leaves in its folder, and what of it a run that is resumed goes on with."""


def transcript_of(out: Path, config: "RunConfig", party: int | None) -> Path:
    """Return where a curious party writes down what it saw: apart from the others', if there are several."""
    seat = config.curious_seat(party)
    return out / "transcript" if seat is None or len(config.seats) == 1 else out / seat.slug / "transcript"


def clear_run(out: Path, resumed: bool = False) -> None:
    """Remove what an earlier run left in a folder, so that nothing of it is taken for this run's.

    A run that is resumed goes on with its journal, transcript and checkpoints.
    """
    for name in (*_FILES, *(() if resumed else _KEPT_FILES)):
        (out / name).unlink(missing_ok=True)
    for path in out.glob("*.png"):
        path.unlink()
    folders = _FOLDERS | ({} if resumed else _KEPT_FOLDERS | _of_a_coalition(out))
    for name, patterns in folders.items():
        if (out / name).is_symlink():  # what a link in it leads to is not this run's
            (out / name).unlink()
        for path in (path for pattern in patterns for path in (out / name).glob(pattern)):
            path.unlink()
    remove(out / "events")


def _of_a_coalition(out: Path) -> dict[str, tuple[str, ...]]:
    """Return the transcripts of several curious parties."""
    seats = [path for name in ("coordinator", "label_holder", "worker-*") for path in out.glob(name)]
    return {f"{seat.name}/transcript": _KEPT_FOLDERS["transcript"] for seat in seats if not seat.is_symlink()}
