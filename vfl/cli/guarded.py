"""The `cafe` command for as long as the program that started it lives: it stops when its standard input closes."""

import os
import signal
import threading

from vfl.cli import main


def _end_with_starter() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    threading.Thread(target=_end_with_starter, daemon=True).start()
    main()
