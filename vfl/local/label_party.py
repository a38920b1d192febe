"""The label holder of a coordinator that has the labels itself: one party more, in a process beside `cafe serve`."""

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from vfl.config import RunConfig
from vfl.datasets.slices import LABELS, WorkerData, load_data, slice_for
from vfl.errors import CafeError, UserError
from vfl.local.children import GRACE_SECONDS, Child, Children
from vfl.local.launch import Part, known_labels, take_part, worker_threads
from vfl.net.tls import identity_for, worker_role
from worker.main import EVERYWHERE
from worker.session import WorkerOptions

LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}  # recognised, never listened at  # nosec B104
"""Where a coordinator that listens everywhere is found from its own machine."""
AGAIN_SECONDS = 0.5
"""After how long a label holder that was killed is started again."""


@dataclass(frozen=True)
class LabelOptions:
    """What `cafe serve` needs for its label holder: a file with the labels, and where the workers reach it."""

    file: Path | None = None
    listen: str | None = None
    advertise: str | None = None

    @property
    def where(self) -> str:
        """Return where it listens."""
        return self.listen or "127.0.0.1:0"

    def check(self, config: RunConfig) -> None:
        """Refuse what would not do, before any party waits."""
        given = {"--labels": self.file, "--label-listen": self.listen, "--label-advertise": self.advertise}
        for option, value in given.items():
            if value is not None and not config.topology.labels_at_coordinator:
                holder = "each worker" if config.topology.is_horizontal else f"worker {config.topology.label_holder}"
                here = f"and here {holder} has the labels"
                raise UserError(f"{option} {value}: belongs to federation.label_holder: coordinator, {here}")
        if self.where.rpartition(":")[0] in EVERYWHERE and self.advertise is None:
            raise UserError(f"--label-listen {self.where}: say with --label-advertise HOST:PORT how workers reach it")

    def hold(self, config: RunConfig) -> WorkerData:
        """Return the labels: the file's, or those of the data set that the config names."""
        if self.file is None:
            return slice_for(load_data(config), config, config.topology.label_holder)
        data = WorkerData.load(self.file)
        if data.y is None or not data.box.empty:
            held = "no labels" if data.y is None else "features"
            raise UserError(f"--labels {self.file}: holds {held}; `cafe slice` writes {LABELS} for the coordinator")
        return data


class LabelParty:
    """The label holder in its process; there is none unless the coordinator has the labels."""

    def __init__(self, config: RunConfig, own: LabelOptions, options: WorkerOptions, folder: Path) -> None:
        self._config, self._options, self._path = config, options, folder / LABELS
        data = own.hold(config)
        data.save(self._path)
        self.labels = known_labels(config, data)
        self._children = Children()
        self._child: Child | None = None
        self._ending = False

    def start(self, address: str, fail: Callable[[CafeError], None]) -> None:
        """Start it for a coordinator that listens at an address; `fail` hears why it ended, if that was no success."""
        host, _, port = address.rpartition(":")
        options = replace(self._options, coordinator=f"{LOOPBACK.get(host, host)}:{port}")
        self._child = self._start(options)
        threading.Thread(target=self._keep, args=(options, fail), daemon=True, name="label holder").start()

    def _keep(self, options: WorkerOptions, fail: Callable[[CafeError], None]) -> None:
        """Start it again when it is killed; not for longer than it would be waited for, if it never lives that long."""
        began, given_up = time.monotonic(), None
        while True:
            assert self._child is not None
            while self._child.outcome is None:
                self._child.receive()
            outcome, now = self._child.outcome, time.monotonic()
            if given_up is None or now - began > options.rejoin_timeout:
                given_up = now + options.rejoin_timeout
            if self._ending or not outcome.wordless or now >= given_up:
                break
            time.sleep(AGAIN_SECONDS)
            began, self._child = time.monotonic(), self._start(options)
        if outcome.code and not self._ending:
            fail(outcome.as_error(f"the coordinator's label holder: {outcome.sentence}"))

    def _start(self, options: WorkerOptions) -> Child:
        return self._children.start("label holder", take_part, self._config, Part(self._path, options))

    def end(self) -> None:
        """See that it is gone."""
        self._ending = True
        if self._child is not None:
            self._child.process.join(GRACE_SECONDS if self._child.finished else 1.0)
        self._children.end()


@contextlib.contextmanager
def label_party(
    config: RunConfig, own: LabelOptions, *, tls: Path | None, insecure: bool, patience: float
) -> Iterator[LabelParty | None]:
    """Check and hold what a label holder of the coordinator needs; inside, it can be started. None without one."""
    own.check(config)
    if not config.topology.labels_at_coordinator:
        yield None
        return
    number = config.topology.label_holder
    identity = identity_for(tls, insecure, worker_role(number), {"--label-listen": own.where})
    threads = worker_threads(2)  # the coordinator computes on the same machine
    options = WorkerOptions(
        number, "", own.where, own.advertise, threads, tls=identity, insecure=insecure, rejoin_timeout=patience
    )
    with tempfile.TemporaryDirectory(prefix="cafe-labels-") as folder:
        party = LabelParty(config, own, options, Path(folder))
        try:
            yield party
        finally:
            party.end()
