"""A lock on a folder, which names the process that has it and goes when the last process that has it ends."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import time
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from vfl.errors import UserError
from vfl.files import PRIVATE, read_bounded
from vfl.limits import plain

NAME = ".lock"
LEFT_SECONDS = 10.0
"""How long the children of a run whose own process was killed may take to notice, and to let the folder go."""
LOOK_SECONDS = 0.1
NOTE_BYTES = 4096


class FolderLock:
    """A lock. A process that is started with it has it too: the folder is free when the last of them has ended."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: Path) -> "FolderLock":
        """Lock a folder, or say who has it."""
        return cls(_lock(folder))

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self._descriptor),)

    def forget_alone(self, folder: Path) -> None:
        """Remove the locked file from a folder that holds nothing else."""
        if os.listdir(folder) == [NAME]:  # noqa: PTH208
            (folder / NAME).unlink()

    def close(self) -> None:
        """Let go of it here; a process that was started with it still has it."""
        os.close(self._descriptor)


def _received(sent: Any) -> FolderLock:
    return FolderLock(sent.detach())


def _lock(folder: Path) -> int:
    """Return the descriptor of the locked file, in which this process is named."""
    path = folder / NAME
    deadline = time.monotonic() + LEFT_SECONDS
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                where = "choose a folder on another file system: --out DIR"
                raise UserError(f"{folder}: a run's folder is locked, which fails: {error.strerror}; {where}") from None
            holder = _read(path)
            if not _is_gone(holder) or time.monotonic() > deadline:
                raise UserError(_in_use(folder, holder)) from None
            time.sleep(LOOK_SECONDS)  # its children are about to end
            continue
        if not os.fstat(descriptor).st_nlink:  # a run that was refused has removed it meanwhile
            os.close(descriptor)
            continue
        about = {"pid": os.getpid(), "host": socket.gethostname(), "command": _command(), "since": time.time()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(about).encode(), 0)
        return descriptor


def _open(path: Path) -> int:
    """Open the file, which nobody removes but who has it locked: two runs might each lock another one of its name."""
    if path.is_symlink():  # of whoever made the folder: what it leads to is not ours to write to
        path.unlink()
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, PRIVATE)
    except OSError as error:
        raise UserError(f"{path}: a run's folder is locked, and this file cannot be made: {error.strerror}") from None


def _command() -> str:
    words = [Path(sys.argv[0]).name, *sys.argv[1:2]] if sys.argv else []
    return " ".join(words)


def _read(path: Path) -> dict[str, Any]:
    """Return who is named in the file, as far as it says."""
    try:
        found = json.loads(read_bounded(path, NOTE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_gone(holder: dict[str, Any]) -> bool:
    """Tell whether the process that took the lock has ended; unknown ones, and those of other machines, have not."""
    pid = holder.get("pid")
    if not isinstance(pid, int) or pid <= 0 or holder.get("host") != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False


def _in_use(folder: Path, holder: dict[str, Any]) -> str:
    pid, command, since, host = (holder.get(key) for key in ("pid", "command", "since", "host"))
    who = f"process {plain(str(pid))}" if isinstance(pid, int) else "another process"
    if isinstance(host, str) and host != socket.gethostname():
        who += f" on {plain(host)}"
    about = [plain(command)] if isinstance(command, str) and command else []
    if isinstance(since, int | float):
        with contextlib.suppress(ValueError, OverflowError, OSError):
            about.append(time.strftime("since %Y-%m-%d %H:%M:%S", time.localtime(since)))
    words = f"{who} ({', '.join(about)})" if about else who
    ways = "wait for its end, stop it, or choose another folder: --out DIR"
    return f"{folder} is in use: {words} has a run there; {ways}"
