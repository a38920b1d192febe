"""Files that are written whole or not at all, and read within bounds where their size is not ours to choose."""

import contextlib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

PRIVATE, PRIVATE_FOLDER = 0o600, 0o700
"""Modes of what holds people's data, or would give them away."""
SHARED = 0o666
"""The mode of files that others may read, before the umask."""


def write_atomically(path: Path, write: Callable[[Path], object], *, durably: bool = True, mode: int = SHARED) -> None:
    """Let `write` fill a new file, then put it in the place of `path`; `durably` waits until it is on the disk.

    The folder may be shared with other users: an existing file or link of that name is replaced, never written to.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        make_new(partial, mode)
        write(partial)
        if durably:
            sync(partial)
        partial.replace(path)
        if durably:
            sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None  # the error of `write` may not name the file


def write_text(path: Path, text: str, newline: str | None = None) -> None:
    """Write a text, in the place of anything that has the name."""
    write_atomically(path, lambda target: target.write_text(text, encoding="utf-8", newline=newline))


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def read_bounded(path: Path, limit: int) -> bytes:
    """Return what a file holds; OSError when that is more than `limit` bytes, or the file has no end."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"{os.strerror(errno.EFBIG)} (the limit is {limit} bytes)", str(path))
    return data


def read_plain(path: Path, limit: int) -> bytes:
    """Return what a plain file holds; OSError for anything else, a link too, and for more than `limit` bytes."""
    refuse_irregular(path, links=False)
    return read_bounded(path, limit)


def refuse_irregular(path: Path, *, links: bool = True) -> None:
    """Raise OSError for anything but a plain file: reading a pipe or a device might never end.

    Without `links` a link is refused too: in a folder that somebody else made it may lead to any file of the reader's.
    """
    if not links and path.is_symlink():
        raise OSError(errno.ELOOP, "a link, which is not followed", str(path))
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a plain file", str(path))


def warn_if_others_read(path: Path) -> None:
    """Say so on standard error if every user of this machine can read a key; its group may be one of a party's own."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IROTH:
        print(
            f"Warning: {path} is a key, and every user of this machine can read it (mode {mode:04o}): chmod 600 {path}",
            file=sys.stderr,
            flush=True,
        )


def is_own(path: Path) -> bool:
    """Return whether a path is a plain file itself, and no link to one elsewhere."""
    return path.is_file() and not path.is_symlink()


def make_new(path: Path, mode: int) -> None:
    """Make an empty file in the place of anything that has the name: a link is removed, not followed."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode))


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all in it, if it is there; links are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def state_folder(name: str) -> Path:
    """Return a folder of this user's, apart from all runs, for what outlasts a process and is for no other party."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "cafe" / name
