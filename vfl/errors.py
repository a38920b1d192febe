"""Errors that a person can act on: one sentence each, and the exit code that goes with it."""


class CafeError(Exception):
    """An error that ends the command with one sentence instead of a traceback."""

    exit_code = 1


class UserError(CafeError):
    """Bad input: the sentence says what, where and what to do."""

    exit_code = 2


class RunFailedError(CafeError):
    """A run that started and could not finish."""

    exit_code = 1


class InterruptedRunError(CafeError):
    """A run that a person stopped."""

    exit_code = 130


def in_words(error: Exception) -> CafeError:
    """Return any error as one with a sentence; bugs say so."""
    if isinstance(error, CafeError):
        return error
    if isinstance(error, OSError):
        return RunFailedError(f"{error.filename or 'a file'} cannot be written or read: {error.strerror or error}")
    return RunFailedError(f"internal error: {type(error).__name__}: {error}")


def from_words(exit_code: int, sentence: str) -> CafeError:
    """Return the error that another process ended with, by its exit code and sentence."""
    kinds: dict[int, type[CafeError]] = {2: UserError, 130: InterruptedRunError}
    return kinds.get(exit_code, RunFailedError)(sentence)
