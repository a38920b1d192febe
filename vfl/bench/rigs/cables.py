"""Cables on loopback, for machines without network namespaces: forwarders that can be cut or slowed."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Sequence

BYTES_AT_ONCE = 1 << 16

SLOW_BYTES_PER_SECOND = 32_000


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
