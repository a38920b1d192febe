"""A Ray cluster: one that runs already, by its address, or one made of this machine for as long as it is needed."""

import importlib.util
import logging
import signal
import socket
import threading
from collections.abc import Mapping
from typing import Any

from vfl.errors import UserError, missing_extra

PROBE_SECONDS = 5.0
"""How long a cluster's head may take to answer. Ray itself would ask for minutes."""


_ours = threading.Event()
"""Set while we connected this process to Ray, rather than the Python program that calls us."""


def connect(address: str | None, option: str, variables: Mapping[str, str] | None = None) -> Any:
    """Return the module `ray`, connected; a process that is connected already stays so.

    `option` is the command-line option of the address, for error messages. The variables are set where tasks run.
    """
    check_cluster(address, option)
    import ray

    if ray.is_initialized():
        return ray
    environment = {"env_vars": dict(variables)} if variables else None
    # Not None: Ray would join the cluster that was last started here, even a dead one. And a cluster made of this
    # machine listens to this machine alone.
    where: dict[str, Any] = {"address": address} if address else {"address": "local", "_node_ip_address": "127.0.0.1"}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**where, **quiet, runtime_env=environment)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address, option, str(error)) from None
    finally:  # the command keeps its own handler: Ray's would end the process on the spot
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
    _ours.set()
    return ray


def leave() -> None:
    """Let go of the cluster, and of what still runs there for us; one that was made of this machine ends."""
    if _ours.is_set():
        import ray

        ray.shutdown()
        _ours.clear()


def check_cluster(address: str | None, option: str) -> None:
    """Refuse to go on without Ray, or with an address where no cluster answers; nothing is started."""
    if importlib.util.find_spec("ray") is None:
        raise missing_extra(option, "Ray", "ray")
    if address in (None, "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UserError(f"{option}: {address!r} is not HOST:PORT or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
    except OSError as error:
        raise _no_cluster(address, option, error.strerror or str(error)) from None


def largest(ray: Any, resource: str) -> float:
    """Return how much of a resource (CPU, GPU) the largest node has."""
    return max((float(node["Resources"].get(resource, 0)) for node in ray.nodes() if node["Alive"]), default=0.0)


def _no_cluster(address: str | None, option: str, why: str) -> UserError:
    reason = (why.strip().splitlines() or ["no reason given"])[0]
    if address is None:
        return UserError(f"{option}: Ray could not make a cluster of this machine ({reason})")
    return UserError(f"{option}: no Ray cluster answers at {address} ({reason})")
