"""Ctrl-C that is never lost: Python drops a KeyboardInterrupt that is raised in a callback, as when modules load."""

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
