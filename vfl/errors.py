"""Errors that a person can act on: one sentence each, and the exit code that goes with it."""


class CafeError(Exception):
    """Something that ends the command with one sentence instead of a traceback."""

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
