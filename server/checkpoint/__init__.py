"""A run between two rounds, on disk: all that the coordinator needs to go on as if nothing had happened.

One safetensors file a checkpoint: parameters and the optimiser's state as tensors, the rest as JSON in the header, a
checksum over all of it. What an attack has seen is not in it: it goes on from a state of its own
(`attacker.driver.state`), or is shown the transcript's rounds again.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError
from torch import Tensor

from server.membership import Member
from vfl.config import RunConfig
from vfl.files import PRIVATE, write_atomically
from vfl.files.tensor_file import DamagedError, read_tensors, write_tensors
from vfl.folder.record import Record
from vfl.folder.schema import Live, as_json
from vfl.observation import Setting
from vfl.partition import Box

FORMAT: Final = 2
KEPT = 2
"""How many checkpoints of a run there are at a time: the last, and the one before, should the last be damaged."""


class Known(BaseModel):
    """What the workers said of their data when they joined: with the config it makes a run's setting."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    boxes: tuple[Box, ...]
    classes: int
    samples: int
    shares: tuple[int, ...]
    tested: bool
    """Whether any worker holds test samples."""

    @classmethod
    def of(cls, setting: Setting, members: Sequence[Member]) -> "Known":
        """Return what is known of a run that is about to begin."""
        tested = any(member.test_samples for member in members)
        about = {"classes": setting.classes, "samples": setting.samples, "shares": setting.topology.shares}
        return cls(boxes=setting.boxes, tested=tested, **about)


class State(Live):
    """What a checkpoint says besides its tensors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[2] = FORMAT
    config: dict[str, Any]
    held: tuple[str, ...]
    """What each worker held when the run began, as a digest."""
    known: Known
    generations: dict[int, int]
    """How often each worker had come back."""
    version: PositiveInt
    """Of the parameters."""
    drawn: str
    """A digest of the batches so far: they are drawn again, and must be the same."""
    at: float
    """When the checkpoint was made, in seconds since 1970."""
    seconds: float
    """How long the run had taken until then, from its start."""
    record: Record
    bytes_up: dict[int, int]
    bytes_down: dict[int, int]
    """By worker."""

    @property
    def rounds(self) -> int:
        """Return how many rounds had been done."""
        return self.record.rounds

    def setting(self, config: RunConfig, labels: tuple[int, ...] | None) -> Setting:
        """Return the run's setting, with the labels if the coordinator has them."""
        known = self.known
        return Setting.of(config, known.boxes, known.classes, known.samples, shares=known.shares, labels=labels)

    def continued(self) -> Record:
        """Return the record of a run that goes on from here."""
        return self.record.model_copy(deep=True, update={"began": time.monotonic() - self.seconds})


class Checkpoints:
    """The checkpoints in a run's folder."""

    def __init__(self, out: Path, config: RunConfig, last: int = 0) -> None:
        """Begin after so many rounds, of which there is a checkpoint if there are any."""
        self._folder = folder_of(out)
        self._every = config.federation.checkpoint_every
        self.last = last
        self._evaluations = 0
        self.before: Callable[[], None] = lambda: None
        """Sees to it that what a checkpoint rests on is on the disk: the transcript's rounds."""

    def due(self, number: int) -> bool:
        """Tell whether there is to be a checkpoint after a round."""
        return self._every is not None and number % self._every == 0

    def wanted(self, record: Record) -> bool:
        """Return True if the last round or evaluation is not in a checkpoint yet, and there are to be checkpoints."""
        done = (record.rounds, len(record.train.evaluations))
        return self._every is not None and bool(record.rounds) and done > (self.last, self._evaluations)

    def write(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint, and remove those that it makes superfluous."""
        path = self._folder / checkpoint_name(state.rounds)
        self.before()
        about = {"state": json.dumps(as_json(state), allow_nan=False)}
        write_atomically(path, lambda partial: write_tensors(partial, tensors, about, checked=True), mode=PRIVATE)
        self.last, self._evaluations = state.rounds, len(state.record.train.evaluations)
        for superfluous in checkpoints_in(self._folder)[KEPT:]:
            superfluous.unlink()


def folder_of(out: Path) -> Path:
    """Return where the checkpoints of a run's folder are."""
    return out / "checkpoints"


def checkpoint_name(rounds: int) -> str:
    """Return what the checkpoint after so many rounds is called."""
    return f"checkpoint-{rounds:07d}.safetensors"


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints, the latest first."""
    return sorted(folder.glob("checkpoint-*.safetensors"), reverse=True)


def holding(member: Member) -> str:
    """Return what tells whether a worker holds what it held before: a digest of what it says of its data."""
    return hashlib.sha256(repr(member.held).encode()).hexdigest()


def read_checkpoint(path: Path) -> tuple[State, dict[str, Tensor]]:
    """Return what a checkpoint holds, or raise DamagedError."""
    tensors, about = read_tensors(path, checked=True)
    try:
        return State.model_validate(json.loads(about["state"])), tensors
    except (KeyError, ValueError, RecursionError, ValidationError):
        raise DamagedError(f"{path} is not a checkpoint of format {FORMAT}, which this release reads") from None
