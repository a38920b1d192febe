"""Calls that are turned down: with a gRPC status, and a sentence for the caller."""

from typing import Any

import grpc

from vfl.net.network import PROTOCOL_VERSION
from vfl.net.tls import ImpostorError, check_caller


class RefusedError(Exception):
    """A call that is turned down: the gRPC status and a sentence for the caller."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def invalid(reason: str) -> RefusedError:
    """Return the refusal of a message that is wrong in itself."""
    return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, reason)


def unfit(reason: str) -> RefusedError:
    """Return the refusal of a message that does not fit to what was before, or to the others'."""
    return RefusedError(grpc.StatusCode.FAILED_PRECONDITION, reason)


def check_version(worker: int, version: int) -> None:
    """Refuse a worker of another release."""
    if version != PROTOCOL_VERSION:
        here = f"this coordinator {PROTOCOL_VERSION}: install the same release on both"
        raise unfit(f"worker {worker} speaks protocol version {version}, {here}")


def check_number(worker: int, parties: int) -> None:
    """Refuse a worker that the config does not have."""
    if worker >= parties:
        raise invalid(f"there is no worker {worker} in this federation: its workers are 0 to {parties - 1}")


def check_certificate(context: Any, worker: int) -> None:
    """Refuse a call over TLS whose certificate is not that of the worker for which it speaks."""
    try:
        check_caller(context, worker)
    except ImpostorError as error:
        raise RefusedError(grpc.StatusCode.PERMISSION_DENIED, str(error)) from None
