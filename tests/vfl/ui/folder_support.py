"""A run's folder as a run leaves it, made by hand so that every number in it is known; and a page served from it."""

import http.client
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import numpy as np

from tests.integration.command_support import start
from vfl.config import parse_config
from vfl.folder.journal import Journal

WORKERS, SAMPLES, ROUNDS = 3, 30, 40
CONFIG = {
    "seed": 5,
    "data": {"name": "digits", "samples": SAMPLES},
    "federation": {"workers": WORKERS, "batch_size": 6, "rounds": ROUNDS, "label_holder": 1},
    "attack": {"name": "least_squares"},
}


def traffic(number: int) -> dict:
    """The bytes after so many rounds."""
    each = [{"id": worker, "up": 100 * number + worker, "down": 10 * number} for worker in range(WORKERS)]
    up, down = (sum(one[way] for one in each) for way in ("up", "down"))
    return {"bytes": {"up": up, "down": down, "peer": number}, "workers": each}


def begin(folder: Path, **changes: object) -> Journal:
    """Begin a run: everybody joins, two rounds are played."""
    folder.mkdir(exist_ok=True)
    journal = Journal(folder)
    journal.state("waiting")
    for worker in range(WORKERS):
        journal.worker(worker, "joined")
    journal.run(parse_config(CONFIG | changes, "the test"), SAMPLES, ROUNDS)
    journal.state("running")
    for number in (1, 2):
        journal.round(number, ROUNDS, loss=2.5 / number, rate=0.0, traffic=lambda number=number: traffic(number))
    journal.say("worker 2 is slow")
    return journal


def estimate(journal: Journal, folder: Path, number: int) -> np.ndarray:
    """Write an estimate of all samples; return it."""
    x = np.random.default_rng(number).random((SAMPLES, 1, 8, 8), dtype=np.float32)
    (folder / "snapshots").mkdir(exist_ok=True)
    np.savez(folder / "snapshots" / f"{number:08d}.npz", x=x)
    journal.estimate(number, f"snapshots/{number:08d}.npz", samples_done=SAMPLES, psnr_mean=12.5, share_30db=0.25)
    return x


class Asked:
    """A page that is asked over plain HTTP."""

    def __init__(self, process: subprocess.Popen) -> None:
        assert process.stderr is not None
        address = re.compile(r"http://127\.0\.0\.1:(\d+)/(?:\?token=(\S+))?")
        found = next(found for line in process.stderr if (found := address.search(line)))
        self.process, self.port, self.token = process, int(found[1]), found[2]
        self.origin = f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request exactly as it is given; an underscore in a header's name stands for a dash."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def tell(self, word: str) -> tuple[int, str]:
        """Say a word as the page does."""
        answer, body = self.ask(f"/control/{word}", "POST", Origin=self.origin, X_Cafe="page")
        return answer.status, body.decode()

    def stream(self, **headers: str) -> "Stream":
        """Open a stream of events."""
        return Stream(self.port, headers)


class Served(Asked):
    """`cafe ui` on a folder, in a process of its own."""

    def __init__(self, folder: Path, listen: str = "127.0.0.1:0") -> None:
        super().__init__(start("ui", folder, "--ui-listen", listen, tag=f"ui {folder}"))

    def end(self) -> int:
        """Press Ctrl-C; return the exit code."""
        os.kill(self.process.pid, signal.SIGINT)
        self.process.communicate(timeout=30)
        return self.process.returncode


class Stream:
    """Server-sent events as a browser reads them."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._connection.request("GET", "/events", headers=headers)
        self.answer = self._connection.getresponse()

    def next(self) -> tuple[str, str]:
        """Wait for an event; return its name and its data."""
        name, data = "message", None
        while line := self.answer.readline().decode():
            key, _, value = line.rstrip("\n").partition(":")
            if key == "event":
                name = value.strip()
            elif key == "data":
                data = value.strip()
            elif line == "\n" and data is not None:  # what has no data only keeps the connection open
                return name, data
        raise AssertionError("the stream has ended")

    def state(self) -> dict:
        """Wait for the next state of the run."""
        while True:
            name, data = self.next()
            if name == "message":
                return json.loads(data)

    def close(self) -> None:
        """Hang up."""
        self.answer.close()
        self._connection.close()
