"""A `cafe` command in a process of its own, for programs that run many: stopped once, never left over."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import IO

from vfl.errors import InterruptedRunError, from_words
from vfl.forkserver import context, end_process, end_with_parent, silent_end, warm_up
from vfl.packages import python_path

LAST_SECONDS = 30.0
"""How long a command may take to write down what is done, once it has been sent Ctrl-C."""


class OutOfTimeError(Exception):
    """A command that had not ended by the time it was given, and was stopped."""


def run_command(
    arguments: Sequence[str],
    log: IO[bytes],
    stop: threading.Event,
    *,
    seconds: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command to its end and return its exit code; what it says goes to the log.

    `stop` ends it early, with InterruptedRunError; after so many `seconds` it is stopped, with OutOfTimeError.
    """
    if stop.is_set():
        raise InterruptedRunError("stopped before it began")
    # A session of its own: Ctrl-C on the terminal is for the caller, which then stops its commands one way and once.
    # The pipe is never written to: it closes when the caller ends, even if it is killed, and the command with it.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "vfl.cli.guarded", *arguments],
        env=os.environ | {"PYTHONPATH": python_path()} | dict(environment or {}),
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    deadline = None if seconds is None else time.monotonic() + seconds
    with process:
        while process.poll() is None:
            if stop.wait(0.1):
                _end(process)
                raise InterruptedRunError("stopped before the end")
            if deadline is not None and time.monotonic() > deadline:
                _end(process)
                raise OutOfTimeError
    return process.returncode


def run_forked(arguments: Sequence[str], log: Path, stop: threading.Event, *, seconds: float, threads: int = 1) -> int:
    """Run a command to its end in a process that is forked off one which has imported all of it; return its exit code.

    For commands that start no process themselves, such as `cafe attack`: they are killed when their time is over, or
    `stop` is set. It takes a tenth of a second, where a new interpreter takes several to import torch.
    """
    if stop.is_set():
        raise InterruptedRunError("stopped before it began")
    warm_up()
    process = context().Process(target=_be_command, args=(list(arguments), str(log), threads), daemon=True)
    process.start()
    deadline = time.monotonic() + seconds
    while process.is_alive():
        process.join(0.1)
        over = time.monotonic() > deadline
        if process.is_alive() and (over or stop.is_set()):
            end_process(process, 0.0)
            if over:
                raise OutOfTimeError
            raise InterruptedRunError("stopped before the end")
    return process.exitcode or 0


def _be_command(arguments: list[str], log: str, threads: int) -> None:
    """Be a command: what it says goes to the log."""
    import torch

    threading.Thread(target=end_with_parent, daemon=True).start()
    with Path(log).open("wb") as said:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
    torch.set_num_threads(threads)
    sys.argv = ["cafe", *arguments]
    resolve_name("vfl.cli:main")()  # by name, as in `run_command`: the command is above this room


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(LAST_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_words(log: Path, code: int, kills: int) -> str:
    """Return the sentence that a command ended with, without its code; `kills` were killed for memory before it."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.removeprefix("cafe: ") for line in lines if line.startswith("cafe: ")]
    if said:
        return str(from_words(code, said[-1]))
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return silent_end("run", kills, f" ({how}; the last line of {log} is: {last})")
