"""Words from a person who watches a run: pause, resume, stop."""

import asyncio
import contextlib
import signal
import threading
from multiprocessing.connection import Connection

from vfl.folder.journal import Journal


class Pause:
    """Between two rounds a run can be paused: the workers stay, and what is under way is finished."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._over = asyncio.Event()
        self._over.set()

    @property
    def on(self) -> bool:
        """Whether the next round waits."""
        return not self._over.is_set()

    def begin(self) -> None:
        """Let no further round begin until `end`."""
        if not self.on:
            self._over.clear()
            self._journal.state("paused")

    def end(self) -> None:
        """Let the rounds go on."""
        if self.on:
            self._over.set()
            self._journal.state("running")

    async def over(self) -> None:
        """Wait until rounds may begin."""
        await self._over.wait()


def heed(pipe: Connection, pause: Pause, stop: signal.Signals) -> None:
    """From now on do what is said at the other end of a pipe; call it in the coordinator's loop.

    A thread listens, as the loop has ended when the attack makes its estimate. `stop` is the signal that a person would
    send, to the main thread, so that it means the same in every phase of a run.
    """
    loop = asyncio.get_running_loop()
    words = {"pause": pause.begin, "resume": pause.end}
    main = threading.main_thread().ident
    assert main is not None

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                word = pipe.recv()
                if word == "stop":
                    signal.pthread_kill(main, stop)
                elif word in words:
                    with contextlib.suppress(RuntimeError):  # the loop has ended: the rounds are over
                        loop.call_soon_threadsafe(words[word])

    threading.Thread(target=listen, daemon=True, name="controls").start()
