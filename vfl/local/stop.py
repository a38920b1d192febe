"""Ctrl-C that is never lost: Python drops a KeyboardInterrupt that is raised in a callback, as when modules load.

And other signals that mean the same.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_signals: list[int] = []


def interrupt(number: int, _frame: FrameType | None) -> None:
    """Handle SIGINT: note it, then interrupt whatever runs."""
    _signals.append(number)
    raise KeyboardInterrupt


def stopped() -> bool:
    """Tell whether the user asked to stop."""
    return bool(_signals)


def honour() -> None:
    """Stop now if that was asked for and went unheard."""
    if _signals:
        raise KeyboardInterrupt


@contextlib.contextmanager
def as_ctrl_c(*signals: signal.Signals) -> Iterator[None]:
    """Let the first of these signals stop the block as Ctrl-C does; further ones do not disturb how it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = [one for one in signals if signal.getsignal(one) is not signal.SIG_IGN]

    def stop(_number: int, _frame: FrameType | None) -> None:
        for one in heeded:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, stop) for one in heeded}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
