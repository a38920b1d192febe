"""A run's folder: whose it is, its files, each with the module that writes and reads it, and how it is emptied."""

import contextlib
import itertools
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


def make_way(out: Path, config: "RunConfig", *, fresh: bool = False, records: bool = True) -> str:
    """Empty a folder for a run; what a run of another config left there moves into before-N, which is then said.

    A run of the same config finds all of it again, so that it takes the place of what is there (but not, if it
    `records` no rounds, of a transcript), and `fresh` says that what is there may be thrown away.
    """
    same = _config_in(out) == config.model_dump(mode="json") and (records or not any(out.glob("transcript/*")))
    if fresh or same or not holds_run(out):
        clear_run(out)
        return ""
    kept = _new_folder(out)
    for path in _left(out):
        target = kept / path.relative_to(out)
        target.parent.mkdir(mode=path.parent.stat().st_mode & 0o777, parents=True, exist_ok=True)
        path.rename(target)
    clear_run(out)
    return f"what an earlier run left in {out} is now in {kept} (--fresh would have thrown it away)"


def _config_in(out: Path) -> object:
    """Return the config of the run whose results a folder has, None where that is not known."""
    from vfl.folder.summary import load_summary  # which is in this room itself

    with contextlib.suppress(UserError):
        return load_summary(out).config.whole
    return None


def _new_folder(out: Path) -> Path:
    """Make a folder for what an earlier run left, of a name that nothing has."""
    for number in itertools.count(1):
        with contextlib.suppress(FileExistsError):
            (out / f"before-{number}").mkdir(mode=out.stat().st_mode & 0o777)
            return out / f"before-{number}"
    raise AssertionError


def _left(out: Path) -> list[Path]:
    """Return all that an earlier run left in a folder and somebody may want; what is in a linked folder is not its."""
    folders = {"snapshots": _FOLDERS["snapshots"]} | _KEPT_FOLDERS | _of_a_coalition(out)
    names = [out / name for name in (*_FILES, *_KEPT_FILES, "events") if os.path.lexists(out / name)]
    inside = [
        path
        for name, patterns in folders.items()
        if not (out / name).is_symlink()
        for pattern in patterns
        for path in (out / name).glob(pattern)
    ]
    return [*names, *out.glob("*.png"), *inside]


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

    `resume` says that the run goes on with what is there, `fresh` that what is there may be thrown away. A folder that
    was made for the run is removed if the run is refused before it wrote anything.
    """
    if resume and fresh:
        raise UserError("--fresh: it throws away what --resume goes on from; choose one of them")
    made = make_folder(folder)
    lock = FolderLock.take(folder)
    try:
        if not resume and not fresh and (rounds := unfinished(folder)):
            ways = "--resume goes on with it, --fresh throws it away, --out DIR leaves it alone"
            raise UserError(f"{folder} has the checkpoints of a run that is not finished (round {rounds}): {ways}")
        yield lock
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: something was done
            lock.forget_alone(folder)
            for one in made:
                one.rmdir()
        raise
    finally:
        lock.close()


def make_folder(folder: Path, mode: int = 0o777) -> list[Path]:
    """Make the folder for a command's results, see that it can be written to, and return which folders were made."""
    made = [one for one in (folder, *folder.parents) if not os.path.lexists(one)]
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: the folder cannot be made: {error.strerror}", code="E10") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"--out {folder}: the folder cannot be written to", code="E10")
    return made


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
