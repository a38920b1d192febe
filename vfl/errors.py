"""Errors that a person can act on: one sentence each, its code, and the exit code that goes with it."""

import re
import sys

from vfl.error_codes import code_of


class CafeError(Exception):
    """An error that ends the command with one sentence instead of a traceback.

    Its code (docs/errors.md) is the one given, that of its class, or that of the module which raises it.
    """

    exit_code = 1
    code = ""

    def __init__(self, *words: object, code: str | None = None) -> None:
        super().__init__(*words)
        raised_in = sys._getframe(1).f_globals.get("__name__", "")
        self.code = code if code is not None else type(self).code or code_of(raised_in)


class UserError(CafeError):
    """Bad input: the sentence says what, where and what to do."""

    exit_code = 2


class RunFailedError(CafeError):
    """A run that started and could not finish."""

    exit_code = 1


class InterruptedRunError(CafeError):
    """A run that a person stopped: nothing to explain, so it has no code."""

    exit_code = 130

    def __init__(self, *words: object) -> None:
        super().__init__(*words, code="")


def missing_extra(what: str, library: str, extra: str) -> UserError:
    """Return the error of what needs a library that the base installation has not; it has the command that gets it."""
    return UserError(f"{what}: {library} is not installed here; pip install 'cafe-vfl[{extra}]'", code="E11")


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


def from_words(exit_code: int, sentence: str, code: str = "E62") -> CafeError:
    """Return the error that another process ended with, by its exit code and sentence; one at its end is its code."""
    printed = re.fullmatch(r"(.*) \[(E\d+)\]", sentence, re.DOTALL)
    if printed:
        sentence, code = printed.groups()
    if exit_code == InterruptedRunError.exit_code:
        return InterruptedRunError(sentence)
    return (UserError if exit_code == UserError.exit_code else RunFailedError)(sentence, code=code)
