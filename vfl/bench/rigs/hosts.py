"""Hosts on one machine: network namespaces at a bridge, each with its own addresses and a cable of its own."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from vfl.errors import RunFailedError

USUAL = ("rate", "20mbit", "burst", "64kb", "latency", "400ms")
SLOW = ("rate", "256kbit", "burst", "8kb", "latency", "400ms")

PORT = 7000
"""Where the first process on a host listens; each further one a port higher, as those before may still be there."""

NAMES = Path("/etc/netns")
"""Files below it replace those in /etc for a namespace (`ip netns exec`)."""


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

    def __init__(self, names: Sequence[str]) -> None:
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
        self._limit(host, SLOW)

    def mend(self, host: str) -> None:
        """Undo `cut` and `slow`."""
        _run("ip", "-n", self.switch, "link", "set", self._ports[host], "up")
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
            self._limit(name, USUAL)

    def _limit(self, host: str, rate: Sequence[str]) -> None:
        for side, device in ((self._space(host), "eth0"), (self.switch, self._ports[host])):
            _run("tc", "-n", side, "qdisc", "replace", "dev", device, "root", "tbf", *rate)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RunFailedError(f"{' '.join(command)}: {done.stderr.strip()}")
