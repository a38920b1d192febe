"""What a party says of itself, so that another can compare: versions, the config that must be alike, the time."""

import json
from collections.abc import Callable

from protos.doctor_pb2 import Party
from vfl.config import RunConfig
from vfl.folder.versions import versions as installed
from vfl.net.network import PROTOCOL_VERSION

Clock = Callable[[], float]
"""Seconds since 1970, as `time.time` has them."""

_OWN_AFFAIR = ("_timeout", "checkpoint_every")
"""How long a party waits, and what it keeps for itself, need not be alike."""


def describe(config: RunConfig, clock: Clock) -> Party:
    """Return what this party says of itself now."""
    return Party(versions=versions(), settings=settings(config), time=clock())


def versions() -> dict[str, str]:
    """Return what is installed here, and the protocol that it speaks."""
    return {"protocol": str(PROTOCOL_VERSION), **installed()}


def settings(config: RunConfig) -> dict[str, str]:
    """Return the keys of a config that all parties must have alike; data and defences are each party's own."""
    tree = config.model_dump(mode="json", include={"seed", "federation", "model"})
    flat = {
        f"{section}.{key}" if key else section: value
        for section, values in tree.items()
        for key, value in (values.items() if isinstance(values, dict) else [("", values)])
    }
    return {key: json.dumps(value, sort_keys=True) for key, value in flat.items() if not key.endswith(_OWN_AFFAIR)}
