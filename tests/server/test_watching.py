"""What a run that ends does about an observer that does not."""

import asyncio
import threading
from types import SimpleNamespace

from server import watching
from server.watching import Watching


def test_a_run_that_ends_does_not_wait_for_ever_for_an_observer_that_is_stuck(monkeypatch):
    monkeypatch.setattr(watching, "OVER_SECONDS", 0.1)
    released = threading.Event()

    async def run() -> bool:
        looking = Watching(lambda _: released.wait(60), SimpleNamespace())
        looking.show(None)
        try:
            return await asyncio.wait_for(looking.over(), 30)
        finally:
            released.set()

    assert asyncio.run(run()) is False
