"""Serving the page: here for `cafe ui`, in a process of its own beside a run."""

import contextlib
import ipaddress
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from vfl.errors import UserError
from vfl.folder.journal import NAME, Mark
from vfl.forkserver import context, end_process, end_with_parent, warm_up
from vfl.net.tls import is_loopback
from vfl.ui.guard import Rules

HANG_UP_SECONDS = 3
"""How long browsers are given to take in the end."""
GRACE_SECONDS = 5.0
"""How long the page's process may take to end."""


@dataclass(frozen=True)
class Place:
    """Where a page is served: an open socket, and who may come."""

    listening: socket.socket
    rules: Rules

    @property
    def url(self) -> str:
        """Return what to open in a browser; with the token, if it wants one."""
        host = self.rules.host
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host).is_unspecified:
                host = "127.0.0.1"
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.rules.port}/" + (f"?token={self.rules.token}" if self.rules.token else "")


def open_place(listen: str) -> Place:
    """Listen on HOST:PORT; a browser on another machine needs a token."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, int(port)), family=family)
    except OSError as error:
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        served = f"the page cannot be served there ({why})"
        raise UserError(f"--ui-listen {listen}: {served}; port 0 takes a free one") from None
    token = None if is_loopback(listen) else secrets.token_urlsafe(24)
    return Place(listening, Rules(host, listening.getsockname()[1], token))


def show_folder(folder: Path, place: Place) -> None:
    """Serve the page of a run's folder until Ctrl-C."""
    if not (folder / NAME).is_file():
        raise UserError(f"{folder} is not a run's folder: it has no {NAME}")
    print(f"{folder} is shown at {place.url} until Ctrl-C", file=sys.stderr, flush=True)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # uvicorn handles Ctrl-C first, then passes it on
    try:
        _serve(folder, place, None, Mark())
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def live_page(folder: Path, listen: str, *, controls: bool = True) -> Iterator[Connection]:
    """Serve the page of a run that begins; yields where the coordinator hears pause, resume and stop.

    Without `controls`, as at a worker, the page has no such buttons.

    The page has a process of its own, so that no browser holds up a round. On a terminal it stays until Ctrl-C.
    """
    place = open_place(listen)
    warm_up()
    heard, sends = context().Pipe(duplex=False)
    process = context().Process(
        target=_attend, args=(folder, place, sends if controls else None, Mark.now(folder)), name="page", daemon=True
    )
    process.start()
    sends.close()
    place.listening.close()
    print(f"live page: {place.url}", file=sys.stderr, flush=True)
    try:
        yield heard
        if sys.stdout.isatty():
            print(f"the page stays at {place.url} until Ctrl-C", file=sys.stderr, flush=True)
            _wait_for_ctrl_c()
    finally:
        heard.close()
        process.terminate()
        end_process(process, GRACE_SECONDS)


def _attend(folder: Path, place: Place, controls: Connection | None, after: Mark) -> None:
    """Be the page's process; Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    _serve(folder, place, controls, after)


def _serve(folder: Path, place: Place, controls: Connection | None, after: Mark) -> None:
    import uvicorn

    from vfl.ui.app import Page, make_app
    from vfl.ui.watch import Watch

    page = Page(Watch(folder, after), controls, stopping=lambda: server.should_exit)
    config = uvicorn.Config(
        make_app(page, place.rules), log_level="error", server_header=False, timeout_graceful_shutdown=HANG_UP_SECONDS
    )
    server = uvicorn.Server(config)
    server.run(sockets=[place.listening])


def _wait_for_ctrl_c() -> None:
    pressed = threading.Event()

    def press(_number: int, _frame: FrameType | None) -> None:
        pressed.set()

    before = {number: signal.signal(number, press) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        pressed.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
