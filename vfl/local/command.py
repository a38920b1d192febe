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
from typing import IO

from vfl.errors import InterruptedRunError
from vfl.forkserver import silent_end
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


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(LAST_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_words(log: Path, code: int, kills: int) -> str:
    """Return the sentence that a command ended with; so many processes had been killed for memory before it."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.removeprefix("cafe: ") for line in lines if line.startswith("cafe: ")]
    if said:
        return said[-1]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return silent_end("run", kills, f" ({how}; the last line of {log} is: {last})")
