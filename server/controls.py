"""Words from whoever watches a run: pause, resume, stop."""

import asyncio
import contextlib
import signal
import threading
from multiprocessing.connection import Connection

from server.coordinator import Coordinator


def heed(pipe: Connection, coordinator: Coordinator, stop: signal.Signals) -> None:
    """From now on do what is said at the other end of a pipe; call it in the coordinator's loop.

    A thread listens, as nobody else does while the attack makes its estimate. `stop` is the signal that a person would
    send, to the main thread, so that it means the same in every phase of a run.
    """
    loop = asyncio.get_running_loop()
    words = {"pause": coordinator.pause, "resume": coordinator.resume}
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
