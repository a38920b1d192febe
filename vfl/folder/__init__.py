"""A run's folder: whose it is, its files, each with the module that writes and reads it, and how it is cleared."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.errors import UserError
from vfl.files import remove
from vfl.files.lock import FolderLock
from vfl.limits import plain

if TYPE_CHECKING:
    from vfl.config import RunConfig

_FILES = ("summary.json", "recovered.npz", "model.pt", "report.html", "rows.json", "rows.csv")
_FOLDERS: dict[str, tuple[str, ...]] = {"snapshots": ("*.npz",), "waiting": ("*.safetensors",)}
_KEPT_FILES = ("journal.jsonl",)
_KEPT_FOLDERS = {
    "transcript": ("*.safetensors", "meta.json"),
    "checkpoints": ("*.safetensors",),
    "attack": ("state-*.safetensors",),
}
"""What a run leaves in its folder, and what of it a run that is resumed goes on with."""


def transcript_of(out: Path, config: "RunConfig", party: int | None) -> Path:
    """Return where a curious party writes down what it saw: apart from the others', if there are several."""
    seat = config.curious_seat(party)
    return out / "transcript" if seat is None or len(config.seats) == 1 else out / seat.slug / "transcript"


def holds_run(out: Path) -> bool:
    """Tell whether an earlier run left anything in a folder that `clear_run` would remove."""
    names = (
        *_FILES,
        *(name for name in _KEPT_FILES if (out / name).exists() and (out / name).stat().st_size),
        "events",
    )
    folders = (_FOLDERS | _KEPT_FOLDERS | _of_a_coalition(out)).items()
    return (
        any(os.path.lexists(out / name) for name in names)
        or any(out.glob("*.png"))
        or any(True for name, patterns in folders for pattern in patterns for _ in (out / name).glob(pattern))
    )


def clear_run(out: Path, resumed: bool = False, seen: int = 0) -> None:
    """Remove what an earlier run left in a folder, so that nothing of it is taken for this run's.

    A run that is resumed goes on with its journal, transcript and checkpoints, and with the snapshots of those rounds
    that its attack has `seen` and is not shown again.
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
            if not (name == "snapshots" and path.stem.isdecimal() and int(path.stem) <= seen):
                path.unlink()
    remove(out / "events")


def _of_a_coalition(out: Path) -> dict[str, tuple[str, ...]]:
    """Return the transcripts of several curious parties."""
    seats = [path for name in ("coordinator", "label_holder", "worker-*") for path in out.glob(name)]
    return {f"{seat.name}/transcript": _KEPT_FOLDERS["transcript"] for seat in seats if not seat.is_symlink()}


@contextlib.contextmanager
def held(folder: Path, *, resume: bool = False, fresh: bool = False) -> Iterator[FolderLock]:
    """Have a folder for one run alone; refuse one that a live run has, or that an unfinished run can go on from.

    `resume` says that the run goes on with what is there, `fresh` that what is there may be thrown away.
    """
    if resume and fresh:
        raise UserError("--fresh: it throws away what --resume goes on from; choose one of them")
    lock = FolderLock.take(folder)
    try:
        if not resume and not fresh and (rounds := unfinished(folder)):
            ways = "--resume goes on with it, --fresh throws it away, --out DIR leaves it alone"
            raise UserError(f"{folder} has the checkpoints of a run that is not finished (round {rounds}): {ways}")
        yield lock
    finally:
        lock.close()


def unfinished(folder: Path) -> str:
    """Return the round of the last checkpoint in a folder whose run has not come to its end; "" if there is none.

    Whether the checkpoint is whole is not looked at: what is damaged is not thrown away unasked either.
    """
    from vfl.folder.summary import load_summary  # which is in this room itself

    found = sorted((folder / "checkpoints").glob("checkpoint-*.safetensors"))
    with contextlib.suppress(UserError):
        if not found or load_summary(folder).complete:
            return ""
    return plain(found[-1].name.removeprefix("checkpoint-").partition(".")[0].lstrip("0") or "0")
