"""A federation whose processes can be lost one by one and started again: `cafe serve` and `cafe work`, over TLS."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from vfl.bench.rigs.networks import Network
from vfl.config import RunConfig
from vfl.datasets.slices import load_data, write_slices
from vfl.errors import RunFailedError
from vfl.folder.transcript.files import round_name
from vfl.net.tls import COORDINATOR, worker_role

PATIENCE_SECONDS = 250.0
"""How long the next round may take, whatever has happened."""
LOOK_SECONDS = 0.005
LAST_WORDS = 3


class Fleet:
    """The processes of one run. The run's config must ask for a transcript: it shows how far the rounds are."""

    def __init__(self, config: RunConfig, network: Network, certs: Path, folder: Path) -> None:
        """Start all parties; all files go below `folder`, the results into `folder/out`."""
        self._network, self._certs, self._folder = network, certs, folder
        self.out = folder / "out"
        self._file = folder / "run.yaml"
        self._file.write_text(config.model_dump_json(), encoding="utf-8")  # JSON is YAML
        self._slices = write_slices(config, load_data(config), folder)
        self.label_holder = worker_role(config.topology.label_holder).stem
        self._done = 0
        self._now: dict[str, subprocess.Popen[bytes]] = {}
        self._generations: Counter[str] = Counter()
        self._all: list[subprocess.Popen[bytes]] = []
        try:
            for party in (COORDINATOR.stem, *(worker_role(m).stem for m in range(config.federation.workers))):
                self.start(party)
        except BaseException:
            self.close()
            raise

    def start(self, party: str) -> None:
        """Start a party, or another process in its place; a coordinator goes on where the one before it was."""
        line = self._serve() if party == COORDINATOR.stem else self._work(party)
        command = [*self._network.command(party), sys.executable, "-m", "vfl.cli", *line, "--tls", str(self._certs)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_")}
        environment["OMP_NUM_THREADS"] = "1"
        with self._log(party).open("ab") as log:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environment)
        self._now[party] = process
        self._generations[party] += 1
        self._all.append(process)

    def signal(self, party: str, number: signal.Signals) -> subprocess.Popen[bytes]:
        """Send a party's present process a signal; return the process."""
        process = self._now[party]
        process.send_signal(number)
        return process

    @property
    def starts(self) -> Mapping[str, int]:
        """Return how often each party was started."""
        return self._generations

    def pids(self) -> dict[str, int]:
        """Return the present process of each party."""
        return {party: process.pid for party, process in self._now.items()}

    def rounds_done(self) -> int:
        """Return the last round that is in the transcript."""
        while (self.out / "transcript" / round_name(self._done + 1)).exists():
            self._done += 1
        return self._done

    def wait_for_round(self, number: int, patience: float = PATIENCE_SECONDS) -> None:
        """Wait until a round is done, or fail with the parties' last log lines."""
        deadline = time.monotonic() + patience
        while self.rounds_done() < number:
            code = self._now[COORDINATOR.stem].poll()
            if code is not None or time.monotonic() > deadline:
                what = "has not come" if code is None else f"cannot come, as the coordinator ended with code {code}"
                raise RunFailedError(f"round {number} {what}; {self._last_words(self._now)}")
            time.sleep(LOOK_SECONDS)

    def finish(self, patience: float = PATIENCE_SECONDS) -> None:
        """Wait until all parties have ended well, or fail with the last log lines of those that have not."""
        deadline = time.monotonic() + patience
        failed = []
        for party, process in self._now.items():
            try:
                if process.wait(max(0.0, deadline - time.monotonic())):
                    failed.append(party)
            except subprocess.TimeoutExpired:
                failed.append(party)
        if failed:
            raise RunFailedError(f"{', '.join(failed)} did not end well; {self._last_words(failed)}")

    def close(self) -> None:
        """Leave no process behind."""
        for process in self._all:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _serve(self) -> list[str]:
        listen = self._network.listen(COORDINATOR.stem, 0)  # always the same: workers know no other
        line = ["serve", str(self._file), "--listen", listen, "--out", str(self.out)]
        return [*line, "--resume"] if self._generations[COORDINATOR.stem] else line

    def _work(self, party: str) -> list[str]:
        worker = int(party.rpartition("-")[2])
        coordinator = self._network.address(COORDINATOR.stem, party, 0)
        line = ["work", str(self._file), "--id", str(worker), "--coordinator", coordinator, "--threads", "1"]
        line += ["--data", str(self._slices[worker])]
        if party == self.label_holder:
            generation = self._generations[party]  # a frozen process keeps its port
            line += ["--listen", self._network.listen(party, generation)]
            line += ["--advertise", self._network.address(party, party, generation)]
        return line

    def _log(self, party: str) -> Path:
        return self._folder / f"{party}.log"

    def _last_words(self, parties: Iterable[str]) -> str:
        words = []
        for party in parties:
            lines = self._log(party).read_text(encoding="utf-8", errors="replace").splitlines()
            words.append(f"{party}: {' / '.join(lines[-LAST_WORDS:]) or 'not a word'}")
        return "; ".join(words)
