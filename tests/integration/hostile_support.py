"""Strangers at a port: they say nothing, a byte a second, or far too much. Bounded, and on this machine only."""

import contextlib
import itertools
import socket
import struct
import threading
import time

import psutil

from vfl.net.handshake import PREFACE

DATA, HEADERS = 0, 1
END_STREAM, END_HEADERS = 1, 4

MOST_BYTES = 256 << 20
"""What all strangers of one test send at most."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(method: str, stream: int = 1, **more: str) -> bytes:
    """The frame that begins a gRPC call."""
    fields = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "here", "te": "trailers"}
    fields |= {"content-type": "application/grpc"} | {key.replace("_", "-"): value for key, value in more.items()}
    block = b"".join(b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode() for k, v in fields.items())
    return frame(HEADERS, END_HEADERS, stream, block)


def message(data: bytes, compressed: bool = False) -> bytes:
    return bytes([compressed]) + struct.pack(">I", len(data)) + data


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)


class Strangers:
    """Threads that molest addresses until told to stop."""

    def __init__(self, call: str) -> None:
        """`call` is a method that takes a stream of messages."""
        self._call = call
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.connections: dict[str, int] = {}
        self.bytes = 0

    def molest(self, address: str) -> None:
        for behave in (self._say_nothing, self._begin_and_say_nothing, self._drip, self._rave, self._go_on_and_on):
            thread = threading.Thread(target=self._again_and_again, args=(behave, address), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _again_and_again(self, behave, address: str) -> None:
        while not self._stop.is_set() and self.bytes < MOST_BYTES:
            with contextlib.suppress(OSError), connect(address) as line:  # nobody there yet, or they had enough of it
                self.connections[behave.__name__] = self.connections.get(behave.__name__, 0) + 1
                behave(line)
            self._stop.wait(0.05)

    def _say_nothing(self, _line) -> None:
        self._stop.wait()

    def _begin_and_say_nothing(self, line) -> None:
        line.sendall(PREFACE + b"".join(headers(self._call, stream) for stream in (1, 3, 5, 7)))
        self._stop.wait()

    def _drip(self, line) -> None:
        upload = PREFACE + headers(self._call) + frame(DATA, 0, 1, message(bytes(1000)))
        for byte in upload:
            line.sendall(bytes([byte]))
            if self._stop.wait(1):
                return

    def _rave(self, line) -> None:
        noise = bytes(range(256)) * 256
        while not self._stop.is_set() and self.bytes < MOST_BYTES:
            self.bytes += line.send(noise)

    def _go_on_and_on(self, line) -> None:
        """Send calls and messages without an end, whatever is answered."""
        line.sendall(PREFACE)
        for stream in itertools.count(1, 2):
            line.sendall(headers(self._call, stream))
            piece = frame(DATA, 0, stream, message(bytes(16_000)))
            for _ in range(8):
                if self._stop.is_set() or self.bytes > MOST_BYTES:
                    return
                self.bytes += line.send(piece)


@contextlib.contextmanager
def watched(process: psutil.Process, growth: int):
    """Fail if a process becomes larger than it was, by more than that, at any moment."""
    before, peak, over = process.memory_info().rss, 0, threading.Event()

    def look() -> None:
        nonlocal peak
        while not over.is_set():
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.01)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert peak - before < growth, f"{(peak - before) >> 20} MiB more than before"


@contextlib.contextmanager
def rude_party(behaviour: str):
    """A party that accepts connections and is silent, drips its answer, or raves; yield its address."""
    over = threading.Event()

    def serve(line: socket.socket) -> None:
        with contextlib.suppress(OSError), line:
            if behaviour == "raves":
                while not over.is_set():
                    line.sendall(bytes(range(256)) * 16)
                    over.wait(0.001)
            for byte in frame(4, 0, 0, bytes(600)) if behaviour == "drips" else b"":  # settings, for ten minutes
                line.sendall(bytes([byte]))
                if over.wait(1):
                    return
            over.wait()

    def accept() -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                line, _ = listening.accept()
                threading.Thread(target=serve, args=(line,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        over.set()
        thread.join()
