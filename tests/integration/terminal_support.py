"""The `cafe` command in a terminal: a pseudo-terminal, and what a person would see on its screen."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from pathlib import Path

import pyte

from tests.integration.command_support import CAFE, ENVIRONMENT

WIDTH, HEIGHT = 80, 60


class Terminal:
    """A command that has a terminal of its own, 80 columns wide."""

    def __init__(self, *arguments, cwd: Path | None = None, environment: dict[str, str] | None = None) -> None:
        self.screen = pyte.Screen(WIDTH, HEIGHT)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
        self.before = termios.tcgetattr(self._ours)
        colours = {key: value for key, value in ENVIRONMENT.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
        self.process = subprocess.Popen(
            [*CAFE, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env={**colours, "TERM": "xterm-256color", "PYTHONWARNINGS": "ignore", **(environment or {})},
            start_new_session=True,
            # the terminal is in charge of it: Ctrl-C reaches all its processes
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display).strip()

    @property
    def after(self) -> list:
        """The terminal's settings now."""
        return termios.tcgetattr(self._ours)

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def wait_for(self, words: str, seconds: float = 270) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < deadline, f"no {words!r} on the screen:\n{self.text}"
            assert self._read(), f"it ended without {words!r}:\n{self.text}"

    def wait(self, seconds: float = 270) -> int:
        """Wait for the end; return the exit code."""
        deadline = time.monotonic() + seconds
        while self._read():
            assert time.monotonic() < deadline, self.text
        return self.process.wait(timeout=500)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=500)
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        """Take in what is written within a moment; False when there will be nothing more."""
        if select.select([self._ours], [], [], 0.2)[0]:
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:  # nobody has the other end open any more
                return False
            self.written += data
            self._stream.feed(data)
        elif self.process.poll() is not None:
            return False
        return True
