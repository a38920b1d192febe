"""Hosts on one machine that start the command, and a capture of what crosses their switch."""

import ctypes
import itertools
import shutil
import socket
import struct
import subprocess
import threading
from collections import defaultdict
from pathlib import Path

from tests.integration.command_support import CAFE, ENVIRONMENT
from vfl.bench.rigs.networks import Hosts as Namespaces

CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3
SO_RCVBUFFORCE, SOL_PACKET, PACKET_STATISTICS = 33, 263, 6
SYN = 0x02
IPV4, IPV6, TCP = 0x0800, 0x86DD, 6


class Hosts(Namespaces):
    """Hosts on which the command can be started."""

    def __init__(self, names: list[str]) -> None:
        self._processes: list[subprocess.Popen] = []
        super().__init__(names)

    def cafe(self, host: str, *arguments, cwd: Path | None = None) -> subprocess.Popen:
        """Start the command on a host."""
        command = [*self.command(host), *CAFE, *map(str, arguments)]
        environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=cwd)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """Leave no process, namespace or file behind."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        super().close()


Flow = tuple[str, int, str, int]
"""One direction of a connection: from whom to whom."""


class Capture:
    """Everything that crosses the switch, as somebody who holds it would see it."""

    def __init__(self, namespace: str) -> None:
        self._socket = _packet_socket(namespace)
        self._socket.settimeout(0.1)
        self._lock = threading.Lock()
        self._starts: dict[Flow, int] = {}
        self._segments: dict[Flow, dict[int, bytes]] = defaultdict(dict)
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def callers(self, port: int) -> set[str]:
        """Who has tried to open a connection to a port so far."""
        with self._lock:
            return {flow[0] for flow in self._starts if flow[3] == port}

    def stop(self) -> None:
        """End the capture; nothing may have been missed."""
        if self._over.is_set():
            return
        self._over.set()
        self._reader.join()
        _, dropped = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        self._socket.close()
        assert dropped == 0, f"the capture missed {dropped} packets"

    def streams(self) -> dict[Flow, bytes]:
        """What each side of each connection sent, put together by sequence numbers."""
        self.stop()
        return {flow: assemble(self._starts[flow], segments) for flow, segments in self._segments.items()}

    def _read(self) -> None:
        while not self._over.is_set():
            try:
                frame = self._socket.recv(1 << 17)
            except TimeoutError:
                continue
            with self._lock:
                self._take(frame)

    def _take(self, frame: bytes) -> None:
        kind, packet = struct.unpack_from("!H", frame, 12)[0], frame[14:]
        if kind == IPV4 and packet[9] == TCP:
            start, end = 4 * (packet[0] & 15), struct.unpack_from("!H", packet, 2)[0]
            source, target = (socket.inet_ntop(socket.AF_INET, packet[at : at + 4]) for at in (12, 16))
        elif kind == IPV6 and packet[6] == TCP:
            start, end = 40, 40 + struct.unpack_from("!H", packet, 4)[0]
            source, target = (socket.inet_ntop(socket.AF_INET6, packet[at : at + 16]) for at in (8, 24))
        else:
            return
        segment = packet[start : end or None]  # very large packets say that their length is 0
        source_port, target_port, number = struct.unpack_from("!HHI", segment)
        flow = (source, source_port, target, target_port)
        payload = segment[4 * (segment[12] >> 4) :]
        if segment[13] & SYN:
            self._starts[flow] = number + 1
        if payload:
            held = self._segments[flow].get(number, b"")
            self._segments[flow][number] = max(held, payload, key=len)


def _packet_socket(namespace: str) -> socket.socket:
    """Open a raw socket in a namespace: a thread enters it for that and ends."""
    made: list[socket.socket] = []

    def enter() -> None:
        with Path("/var/run/netns", namespace).open() as file:
            assert ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) == 0, ctypes.get_errno()
        made.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    made[0].setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 28)
    return made[0]


def assemble(start: int, segments: dict[int, bytes]) -> bytes:
    """Put segments in the order of their sequence numbers, which begin anew after 2**32; repeated bytes count once."""
    whole = bytearray()
    for offset, payload in sorted(((number - start) % (1 << 32), payload) for number, payload in segments.items()):
        assert offset <= len(whole), f"bytes {len(whole)} to {offset} were not captured"
        whole[offset : offset + len(payload)] = payload
    return bytes(whole)


def tls_records(stream: bytes) -> list[int]:
    """The types of the TLS records that a stream consists of, from its first byte to its last whole record."""
    types, at = [], 0
    while at + 5 <= len(stream):
        kind, version, length = struct.unpack_from("!BHH", stream, at)
        assert kind in (20, 21, 22, 23), f"byte {at} is no TLS record but {stream[at : at + 16]!r}"
        assert version in (0x0301, 0x0303)
        types.append(kind)
        at += 5 + length
    return types


def found(streams: dict[Flow, bytes], marker: bytes) -> list[Flow]:
    """The streams that a marker is in."""
    return [flow for flow, stream in streams.items() if marker in stream]


def total(streams: dict[Flow, bytes], port: int) -> int:
    """How many bytes were sent to and from a port."""
    return sum(len(stream) for (_, one, _, other), stream in streams.items() if port in (one, other))


def own_files(certs: Path, target: Path, stem: str) -> Path:
    """A folder with what one party needs of a folder of certificates, and nothing else."""
    folder = target / stem
    folder.mkdir(mode=0o700, parents=True)
    for name in itertools.chain(["ca.pem"], (f"{stem}{end}" for end in (".pem", ".key"))):
        shutil.copy(certs / name, folder)
    return folder
