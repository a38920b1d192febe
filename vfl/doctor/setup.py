"""What is to be checked: a config, and the options that `cafe serve` or `cafe work` will be given."""

import time
from dataclasses import dataclass
from pathlib import Path

from vfl.config import RunConfig
from vfl.doctor.facts import Clock
from vfl.net.tls import Role


@dataclass(frozen=True)
class Setup:
    """One party's side of a run that is to come; without `worker` the coordinator's."""

    config: RunConfig
    listen: str
    worker: int | None = None
    coordinator: str = ""
    advertise: str | None = None
    data: Path | None = None
    out: Path = Path("runs")
    tls: Path | None = None
    insecure: bool = False
    wait: bool = False
    """Answer the others' doctors, and wait for them."""
    clock: Clock = time.time

    @property
    def role(self) -> Role:
        """Return who this party is."""
        return Role(self.worker)

    @property
    def holds_labels(self) -> bool:
        """Whether this is the label holder, whom the other workers call."""
        return self.worker is not None and self.worker == self.config.federation.holder

    @property
    def called(self) -> str | None:
        """Return the address at which others call this party, if they do."""
        if self.worker is None:
            return self.listen
        return self.advertise or self.listen if self.holds_labels else None

    @property
    def patience(self) -> float:
        """Return for how many seconds somebody who does not answer yet is waited for."""
        return self.config.federation.join_timeout if self.wait else 0.0
