"""The process that all roles of `cafe run` are forked from: it imports torch and gRPC once, and initialises neither."""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from vfl.errors import UserError
from vfl.packages import python_path

PRELOAD = ["vfl.local.launch", "vfl.cli.app"]
COMPILER = "torch._dynamo"
"""What torch imports, in a second or two, when the first optimiser is made."""
ATTACKS = ["scipy.optimize", "sklearn.cluster", "vfl.report.page", "vfl.report.sweep", "torch.utils.tensorboard"]
"""What `cafe attack` imports to score and report, in a second or two; an extra that is missing is left out."""
LONGEST_FOLDER = 107 - len("/pymp-xxxxxxxx/listener-xxxxxxxx")
"""What a Unix socket's path leaves for the folder of temporary files, in bytes."""
COUNTERS = Path("/proc/vmstat")
"""Where Linux counts what it did for memory; other systems have no such file."""
_OURS = "cafe"
if os.environ.get("PYTHONSAFEPATH") == _OURS:  # in the fork server; programs that plug-ins start get none of it
    del os.environ["PYTHONSAFEPATH"]


def context() -> ForkServerContext:
    """Return the way to start processes."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOAD)
    return found


def warm_up(trains: bool = False, *, attacks: bool = False) -> None:
    """Start the fork server now, so that it imports while this process does something else.

    One that makes many attacks imports what they take, once for all.
    """
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        raise UserError(f"TMPDIR {folder}: is too long for sockets in it; set one of {LONGEST_FOLDER} bytes or fewer")
    context().set_forkserver_preload([*PRELOAD, *([COMPILER] if trains else []), *(ATTACKS if attacks else [])])
    with _environment_of_children():
        if threading.current_thread() is not threading.main_thread():
            forkserver.ensure_running()
            return
        # Ctrl-C reaches the whole group: what is still importing would end in a traceback. Blocked here, it is blocked
        # in the fork server and its children for ever, and reaches this process, which stops them, a moment later.
        resource_tracker.ensure_running()  # first: it unblocks what it blocks itself
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextlib.contextmanager
def _environment_of_children() -> Iterator[None]:
    """Start Python here so that no file of the working folder is taken for one of Python's or ours."""
    before = {key: os.environ.get(key) for key in ("PYTHONSAFEPATH", "PYTHONPATH")}
    os.environ.update(PYTHONSAFEPATH=_OURS, PYTHONPATH=python_path())
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def end_process(process: ForkServerProcess, seconds: float) -> None:
    """Wait so many seconds for a process to end, and kill it if it does not."""
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()


def end_with_parent() -> None:
    """End this process when the one that started it was killed; wait for that on a thread of its own."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def memory_kills() -> int:
    """Return how many processes Linux has killed for want of memory since it was started; 0 where nobody counts."""
    try:
        counted = dict(line.split() for line in COUNTERS.read_text(encoding="ascii").splitlines())
        return int(counted["oom_kill"])
    except (OSError, ValueError, KeyError):
        return 0


def silent_end(name: str, before: int, how: str = "") -> str:
    """Return the sentence on a process that ended without one; `before` is `memory_kills` when it was started."""
    ended = f"the {name} ended without a word{how}"
    if memory_kills() > before:
        helps = "end other programs, use fewer samples, or take a machine with more (see `cafe plan`)"
        return f"{ended}, and Linux has killed a process for want of memory since it began: {helps}"
    return ended


def first_to_go() -> None:
    """Let Linux end this process before the others of a run where memory is short: those that are left say so."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
