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
    if is_want_of_memory(error):
        helps = "end other programs, use fewer samples, or take a machine with more"
        return RunFailedError(f"there is too little memory: {helps} (`cafe plan FILE` says what a run takes)")
    return RunFailedError(f"internal error: {type(error).__name__}: {error}")


def is_want_of_memory(error: Exception) -> bool:
    """Tell whether Python or torch was refused memory; torch says so in a RuntimeError's words, or in its own class."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error))
    )


def from_words(exit_code: int, sentence: str) -> CafeError:
    """Return the error that another process ended with, by its exit code and sentence."""
    kinds: dict[int, type[CafeError]] = {2: UserError, 130: InterruptedRunError}
    return kinds.get(exit_code, RunFailedError)(sentence)
