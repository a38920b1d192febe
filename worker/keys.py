"""Secrets that workers keep from the coordinator: a file with random bytes."""

from pathlib import Path

from vfl.errors import UserError
from vfl.files import read_bounded
from vfl.limits import PEM_BYTES

LEAST_BYTES = 16


def read_key(path: Path, option: str) -> str:
    """Return a key file's contents as text, or say what is wrong with the option that names it."""
    try:
        key = read_bounded(path, PEM_BYTES)
    except OSError as error:
        raise UserError(f"{option}: {path} cannot be read: {error.strerror}") from None
    if len(key) < LEAST_BYTES:
        raise UserError(f"{option}: {path} holds {len(key)} bytes; give it {LEAST_BYTES} random ones or more")
    return key.hex()
