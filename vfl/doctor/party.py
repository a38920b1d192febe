"""One party as `cafe doctor` sees it: its side of a run that is to come, and what it says of itself to another."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protos.doctor_pb2 import Party
from vfl.config import RunConfig
from vfl.folder.versions import versions as installed
from vfl.net.network import PROTOCOL_VERSION
from vfl.net.tls import Role

Clock = Callable[[], float]
"""Seconds since 1970, as `time.time` has them."""

_MAY_DIFFER = ("_timeout", "checkpoint_every")
"""Endings of keys that may differ: how long a party waits, and what it keeps for itself."""


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
    """Answer the doctors of other parties, and wait for them."""
    clock: Clock = time.time

    @property
    def role(self) -> Role:
        """Return who this party is."""
        return Role(self.worker)

    @property
    def holds_labels(self) -> bool:
        """Return whether this is the label holder, which the other workers call."""
        return self.worker is not None and self.config.topology.serves_peers(self.worker)

    @property
    def called(self) -> str | None:
        """Return the address at which other parties call this one, if they do."""
        if self.worker is None:
            return self.listen
        return self.advertise or self.listen if self.holds_labels else None

    @property
    def patience(self) -> float:
        """Return for how many seconds a party that does not answer yet is waited for."""
        return self.config.federation.join_timeout if self.wait else 0.0


def describe_party(config: RunConfig, clock: Clock) -> Party:
    """Return what is installed here, the protocol that it speaks, the config's settings, and the time."""
    versions = {"protocol": str(PROTOCOL_VERSION), **installed()}
    return Party(versions=versions, settings=settings(config), time=clock())


def settings(config: RunConfig) -> dict[str, str]:
    """Return the keys of a config that all parties must have alike; data and defences are each party's own."""
    tree = config.model_dump(mode="json", include={"seed", "federation", "model"})
    flat = {
        f"{section}.{key}" if key else section: value
        for section, values in tree.items()
        for key, value in (values.items() if isinstance(values, dict) else [("", values)])
    }
    return {key: json.dumps(value, sort_keys=True) for key, value in flat.items() if not key.endswith(_MAY_DIFFER)}
