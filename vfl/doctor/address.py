"""Checks of another party's address from here: name, port, encryption, who answers, and whether it is healthy."""

import os
import socket
import time
from collections.abc import Sequence
from typing import Any
from urllib.request import proxy_bypass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from vfl.doctor.findings import Sheet
from vfl.errors import CafeError
from vfl.limits import ANSWER_SECONDS, CALL_SECONDS, CONNECT_SECONDS, PROOF_SECONDS
from vfl.net.handshake import PREFACE, RETRY_SECONDS, tls_at
from vfl.net.network import reach, sentence
from vfl.net.tls import Identity, Role, is_loopback

_SETTINGS = 4
"""The fourth byte of an HTTP/2 server's answer: the type of its first frame, SETTINGS."""

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""The variables in which gRPC looks for a proxy, in that order."""

Place = tuple[str, int]
"""An IP address and a port."""


def examine(
    sheet: Sheet, address: str, role: Role, tls: Identity | None, *, patience: float = 0.0
) -> grpc.Channel | None:
    """Check the way to a party that should answer within `patience` seconds; return a channel to it if it does."""
    places = _resolve(sheet, address)
    if not places or not _connect(sheet, address, places, patience):
        return None
    _check_proxy(sheet, address)
    _look_at_wire(sheet, address, places, tls)
    try:
        channel = reach(address, role, tls, PROOF_SECONDS)
    except TimeoutError:
        sheet.fail("handshake", f"{address} accepts connections but does not speak gRPC: is it really {role}?")
        return None
    except CafeError as error:
        sheet.fail("handshake", str(error))
        return None
    proof = "showed no certificate: this is plain text" if tls is None else "proved itself, and accepts our certificate"
    sheet.ok("handshake", f"{role} at {address} {proof}")
    return channel


def check_health(sheet: Sheet, address: str, channel: grpc.Channel, services: Sequence[str]) -> str | None:
    """Return the first of these services that the party serves; None if it serves none."""
    try:
        found = next((service for service in services if _serves(channel, service)), None)
    except grpc.RpcError as error:
        sheet.fail("health", f"{address} does not answer health checks: {sentence(error)}")
        return None
    if found is None:
        sheet.fail("health", f"{address} serves none of {', '.join(services)}: is it the right port?")
    else:
        sheet.ok("health", f"{found} is serving at {address}")
    return found


def _serves(channel: grpc.Channel, service: str) -> bool:
    """Return whether a party says that it offers a service."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    try:
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=CALL_SECONDS)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.NOT_FOUND:
            return False
        raise
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _resolve(sheet: Sheet, address: str) -> list[Place]:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", error)
        sheet.fail("name", f"{host} cannot be resolved ({reason}): put it into DNS or the hosts file here")
        return []
    places = list(dict.fromkeys((str(entry[4][0]), int(entry[4][1])) for entry in found))
    sheet.ok("name", f"{host} is {', '.join(numbers for numbers, _ in places)}")
    return places


def _connect(sheet: Sheet, address: str, places: Sequence[Place], patience: float) -> bool:
    """Check that connections are accepted, at every address that a name has."""
    deadline = time.monotonic() + patience
    while True:
        shut = {place: reason for place in places if (reason := _shut(place))}
        if len(shut) < len(places) or time.monotonic() >= deadline:
            break
        time.sleep(RETRY_SECONDS)
    reasons = "; ".join(f"{numbers} port {port}: {reason}" for (numbers, port), reason in shut.items())
    if len(shut) == len(places):
        sheet.fail("port", f"no answer at {address} ({reasons})")
    elif shut:
        sheet.warn("port", f"{address} answers, but not at all of its addresses ({reasons}): some callers will wait")
    else:
        sheet.ok("port", f"{address} accepts connections")
    return len(shut) < len(places)


def _shut(place: Place) -> str | None:
    try:
        with socket.create_connection(place, timeout=CONNECT_SECONDS):
            return None
    except ConnectionRefusedError:
        return "no process listens there: start `cafe serve`, or `cafe doctor … --wait`, or look at the port"
    except TimeoutError:
        return "no answer at all: look at firewalls, NAT and the address"
    except OSError as error:
        return f"{error.strerror}: look at routes and the address"


def _check_proxy(sheet: Sheet, address: str) -> None:
    """Warn of a proxy that gRPC would use and the checks here do not."""
    host = address.rpartition(":")[0].strip("[]")
    variable = next((name for name in _PROXIES if os.environ.get(name)), None)
    if variable and not proxy_bypass(host):
        sheet.warn("proxy", f"{variable} sends gRPC to {host} through a proxy: put {host} into no_proxy if it need not")


def _look_at_wire(sheet: Sheet, address: str, places: Sequence[Place], tls: Identity | None) -> None:
    """Speak plain HTTP/2 to a party, as an eavesdropper would: with TLS it must not answer."""
    plain = _answers_plain_text(address)
    if tls is not None and plain:
        sheet.fail("encryption", f"{address} answers plain text, what it sends can be read by all: start it with --tls")
    elif tls is not None:
        spoken = tls_at(address)
        sheet.ok("encryption", f"{address} refuses plain text{f', and speaks {spoken}' if spoken else ''}")
    elif all(is_loopback(f"{numbers}:0") for numbers, _ in places):
        sheet.ok("encryption", f"plain text, and {address} is on this machine")
    else:
        sheet.warn("encryption", f"plain text to {address}: all machines on the way can read and change what is sent")


def _answers_plain_text(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS) as connection:
            connection.sendall(PREFACE)
            answer = b""
            while len(answer) < 4 and (more := connection.recv(4 - len(answer))):
                answer += more
    except OSError:
        return False
    return len(answer) == 4 and answer[3] == _SETTINGS
