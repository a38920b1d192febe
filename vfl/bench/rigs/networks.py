"""Networks whose connections can be cut and slowed: hosts in network namespaces or, where none can be made, cables.

Both give parties, called as their certificates are, addresses for each restart of their processes.
"""

import contextlib
import os
import secrets
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from vfl.errors import RunFailedError

USUAL = ("rate", "20mbit", "burst", "64kb", "latency", "400ms")
SLOW = ("rate", "256kbit", "burst", "8kb", "latency", "400ms")
PORT = 7000
"""Where the first process on a host listens; each further one a port higher, as those before may still be there."""
NAMES = Path("/etc/netns")
"""Files below it replace those in /etc for a namespace (`ip netns exec`)."""


BYTES_AT_ONCE = 1 << 16
SLOW_BYTES_PER_SECOND = 32_000


def why_no_hosts() -> str | None:
    """Return why network namespaces cannot be made here; None when they can."""
    if os.geteuid() != 0:
        return "not root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} of iproute2 are not installed"
    name = f"cafe-{secrets.token_hex(4)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return made.stderr.strip()
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


class Hosts:
    """Hosts with a cable each to one switch; nothing leads from there to the world outside."""

    def __init__(self, names: Sequence[str], usual: Sequence[str] = USUAL, slow: Sequence[str] = SLOW) -> None:
        """Make a host for each name; its cable lets `usual` through, as `tc` says it, and `slow` when it is slowed."""
        self._usual, self._slow = usual, slow
        self._tag = f"cafe-{secrets.token_hex(4)}"
        self.switch = f"{self._tag}-switch"
        self.ipv4 = {name: f"192.0.2.{10 + i}" for i, name in enumerate(names)}
        self.ipv6 = {name: f"2001:db8::{10 + i}" for i, name in enumerate(names)}
        self._ports = {name: f"port{i}" for i, name in enumerate(names)}
        self._spaces = [self.switch, *map(self._space, names)]
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def command(self, host: str) -> list[str]:
        """Return what a command line begins with that runs on a host."""
        return ["ip", "netns", "exec", self._space(host)]

    def listen(self, _host: str, generation: int = 0) -> str:
        """Return where a host's process listens; each restart has its own port."""
        return f"0.0.0.0:{PORT + generation}"

    def address(self, host: str, _caller: str, generation: int = 0) -> str:
        """Return where a host's process is called; each restart has its own port."""
        return f"{self.ipv4[host]}:{PORT + generation}"

    def cut(self, host: str) -> None:
        """Take a host's cable down: neither end notices at once."""
        _run("ip", "-n", self.switch, "link", "set", self._ports[host], "down")

    def slow(self, host: str) -> None:
        """Let little through a host's cable, both ways."""
        self._limit(host, self._slow)

    def mend(self, host: str) -> None:
        """Undo `cut` and `slow`."""
        _run("ip", "-n", self.switch, "link", "set", self._ports[host], "up")
        self._limit(host, self._usual)

    def widen(self) -> None:
        """Let as much through every cable as through one between machines of one room."""
        self._usual = USUAL
        for host in self._ports:
            self._limit(host, USUAL)

    def close(self) -> None:
        """Leave no namespace or file behind; a namespace goes when the last process in it ends."""
        for space in self._spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
            shutil.rmtree(NAMES / space, ignore_errors=True)
        if NAMES.is_dir() and not any(NAMES.iterdir()):
            NAMES.rmdir()

    def _space(self, host: str) -> str:
        return f"{self._tag}-{host}"

    def _make(self) -> None:
        for space in self._spaces:
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
        _run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        known = "".join(f"{address} {name}.cafe.test\n" for name, address in self.ipv4.items())
        for name, port in self._ports.items():
            space = self._space(name)
            (NAMES / space).mkdir(parents=True)
            (NAMES / space / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + known)
            cable = ("type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "-n", self.switch, "link", "add", port, *cable)
            _run("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", space, "address", "add", f"{self.ipv4[name]}/24", "dev", "eth0")
            _run("ip", "-n", space, "address", "add", f"{self.ipv6[name]}/64", "dev", "eth0", "nodad")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
            self._limit(name, self._usual)

    def _limit(self, host: str, rate: Sequence[str]) -> None:
        for side, device in ((self._space(host), "eth0"), (self.switch, self._ports[host])):
            _run("tc", "-n", side, "qdisc", "replace", "dev", device, "root", "tbf", *rate)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RunFailedError(f"{' '.join(command)}: {done.stderr.strip()}")


class Cable:
    """Forwards connections to another port of this machine; while it is cut, bytes wait, and neither end notices."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.whole = threading.Event()
        self.whole.set()
        self.bytes_per_second: float | None = None
        self._ends: list[socket.socket] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        self._listener.close()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.whole.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._closed:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self.whole.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self.target), timeout=5.0)
        except OSError:
            near.close()
            return
        self._ends += [near, far]
        self._pass_on(near, far)
        for end in (near, far):
            end.close()

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with contextlib.suppress(OSError, ValueError):
            while not self._closed:
                for end in select.select([near, far], [], [])[0]:
                    rate = self.bytes_per_second
                    data = end.recv(BYTES_AT_ONCE if rate is None else int(rate / 20))
                    self.whole.wait()
                    if not data:
                        return
                    if rate is not None:
                        time.sleep(len(data) / rate)
                    other[end].sendall(data)


class Cables:
    """A cable from each worker to the coordinator, and one from all workers to the label holder."""

    def __init__(self, workers: Sequence[str], label_holder: str) -> None:
        self._coordinator_port = _free_port()
        self._to_coordinator = {worker: Cable(self._coordinator_port) for worker in workers}
        self._to_label_holder = Cable(_free_port())
        self._label_holder = label_holder

    def command(self, _party: str) -> list[str]:
        """Return what a party's command line begins with: nothing, all are on this machine."""
        return []

    def listen(self, party: str, generation: int) -> str:
        """Return where a party's process listens; a restarted label holder's cable leads to a new port."""
        if party == self._label_holder and generation:
            self._to_label_holder.target = _free_port()
        return f"127.0.0.1:{self._to_label_holder.target if party == self._label_holder else self._coordinator_port}"

    def address(self, party: str, caller: str, _generation: int) -> str:
        """Return where a caller reaches a party: at the end of its cable."""
        return (self._to_label_holder if party == self._label_holder else self._to_coordinator[caller]).address

    def cut(self, party: str) -> None:
        """Cut what leads to a party."""
        for cable in self._of(party):
            cable.whole.clear()

    def slow(self, party: str) -> None:
        """Let little through what leads to a party."""
        for cable in self._of(party):
            cable.bytes_per_second = SLOW_BYTES_PER_SECOND

    def mend(self, party: str) -> None:
        """Undo `cut` and `slow`."""
        for cable in self._of(party):
            cable.bytes_per_second = None
            cable.whole.set()

    def close(self) -> None:
        """End all connections."""
        for cable in (*self._to_coordinator.values(), self._to_label_holder):
            cable.close()

    def _of(self, party: str) -> list[Cable]:
        if party not in self._to_coordinator:
            return list(self._to_coordinator.values())
        own = [self._to_coordinator[party]]
        return [*own, self._to_label_holder] if party == self._label_holder else own


def _free_port() -> int:
    """Return a port that no process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


Network = Hosts | Cables
