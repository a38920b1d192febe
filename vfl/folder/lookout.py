"""A thread that looks at something again and again, for as long as a block lasts."""

import threading
from abc import ABC, abstractmethod
from typing import Self

LOOK_EVERY_SECONDS = 0.25


class Lookout(ABC):
    """Calls `look` again and again beside the block, once more at its end, and then `close`."""

    def __init__(self, every: float = LOOK_EVERY_SECONDS) -> None:
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    @abstractmethod
    def look(self) -> None:
        """See what is new."""

    def close(self) -> None:  # noqa: B027 - not all hold something
        """Let go of what was looked at."""

    def _follow(self) -> None:
        try:
            while not self._over.wait(self._every):
                self.look()
            self.look()
        finally:
            self.close()
