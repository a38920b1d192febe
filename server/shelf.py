"""Where rounds lie until the attack has read them: a few in memory, the rest in the transcript's folder on disk."""

import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vfl.files import PRIVATE_FOLDER
from vfl.folder.results import Queue
from vfl.folder.transcript import parameters_name, round_name, write_parameters, write_round
from vfl.limits import RESERVE_BYTES
from vfl.observation import ModelTensors, Observation

SLOTS = 4
"""Rounds that wait in memory; those beyond them wait on disk."""

LARGE = 1_000_000
"""Bytes of a round above which new pages in the kernel's cache take more time than waiting for the disk."""

SLOW_DISK = 100_000_000
"""Bytes a second below which rounds are left to the kernel's cache, which may take its time."""

SHARED_MEMORY = Path("/dev/shm")  # what is made in it has a name of its own, and is ours alone  # nosec B108


@dataclass(frozen=True)
class Shown:
    """The files of one round."""

    round: Path
    parameters: Path | None
    """None if the attack has this version already."""
    discard: bool = False
    """Whether nobody wants the files once they are read."""


@dataclass(frozen=True)
class Places:
    """The folders of a run's waiting rounds, known to both sides: whoever is left last clears them."""

    slots: Path
    transcript: Path
    recorded: bool
    """Whether the transcript is to be kept; all rounds are read from there then."""

    @classmethod
    def make(cls, out: Path, recorded: bool) -> "Places":
        """Choose the folders for a run."""
        memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        slots = Path(tempfile.mkdtemp(prefix=f"cafe-rounds-{os.getpid()}-", dir=memory))
        return cls(slots, out.resolve() / "transcript", recorded)

    def clear(self) -> None:
        """Remove all that is not to be kept."""
        shutil.rmtree(self.slots, ignore_errors=True)
        if not self.recorded:
            with suppress(OSError):  # the other side may be clearing too
                for path in self.transcript.glob("*.safetensors"):
                    path.unlink(missing_ok=True)
                self.transcript.rmdir()


class Shelf:
    """Puts rounds where the attack finds them. Slots are written over in place, which costs no new memory."""

    def __init__(self, places: Places, queue: Queue) -> None:
        self._places, self._queue = places, queue
        self._free = set(range(SLOTS))
        self._unread: deque[int | None] = deque()
        self._version = 0
        self._needed = 0
        """Bytes that the last round would have taken in a slot."""
        self._direct = _Speed()

    @property
    def unread(self) -> int:
        """Return how many rounds the attack is behind."""
        return len(self._unread)

    @property
    def has_room(self) -> bool:
        """Whether another round can be put: in a slot, or on a disk that is not about to be full."""
        if self._places.recorded or self._usable() is not None:
            return True
        return shutil.disk_usage(self._places.transcript.parent).free > RESERVE_BYTES

    def put(self, observation: Observation) -> Shown:
        """Store a round, with its parameters if they are new."""
        new, self._version = observation.version != self._version, observation.version
        slot = self._slot(observation)
        self._unread.append(slot)
        self._queue.longest = max(self._queue.longest, self.unread)
        if slot is None:
            self._queue.spilled += 1
        if self._places.recorded or slot is None:
            folder = self._places.transcript
            shown = Shown(
                folder / round_name(observation.round),
                folder / parameters_name(observation.version) if new else None,
                discard=not self._places.recorded,
            )
        else:
            folder = self._places.slots
            shown = Shown(_slot_file(folder, slot), folder / f"{slot}-parameters" if new else None)
        if not self._places.recorded:
            self._write(shown, observation, direct=slot is None and self._needed > 2 * LARGE and self._direct.quick)
        return shown

    def taken(self) -> None:
        """Note that the attack is done with its oldest round."""
        slot = self._unread.popleft()
        if slot is not None:
            self._free.add(slot)

    def _write(self, shown: Shown, observation: Observation, direct: bool) -> None:
        if shown.discard:
            shown.round.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        began = time.monotonic()
        write_round(shown.round, observation, direct=direct)
        if shown.parameters is not None:
            write_parameters(shown.parameters, observation, direct=direct)
        if direct:
            size = sum(path.stat().st_size for path in (shown.round, shown.parameters) if path is not None)
            self._direct.add(size, time.monotonic() - began)

    def _slot(self, observation: Observation) -> int | None:
        """Take a slot, if there is one."""
        seen = observation.uploads or (observation.gradients,)
        self._needed = 2 * (sum(map(_size, seen)) + _size(observation.parameters))
        slot = self._usable()
        if slot is not None:
            self._free.remove(slot)
        return slot

    def _usable(self) -> int | None:
        """Return the first free slot, the likeliest to have its memory already; None without one that has room."""
        slot = min(self._free, default=None)
        if slot is None or self._places.recorded or _slot_file(self._places.slots, slot).exists():
            return slot
        return slot if shutil.disk_usage(self._places.slots).free >= self._needed else None


@dataclass
class _Speed:
    """How fast the disk has taken what went past the kernel's cache."""

    size: int = 0
    seconds: float = 0.0

    def add(self, size: int, seconds: float) -> None:
        self.size, self.seconds = self.size + size, self.seconds + seconds

    @property
    def quick(self) -> bool:
        """Whether to go on so; a second must have passed before a disk is called slow, and then it stays so."""
        return self.seconds < 1 or self.size > self.seconds * SLOW_DISK


def _slot_file(folder: Path, slot: int) -> Path:
    return folder / f"{slot}-round"


def _size(tensors: ModelTensors) -> int:
    parts: Iterable[Tensor] = (tensor for part in (*tensors.bottoms, tensors.top) for tensor in part.values())
    return sum(tensor.nbytes for tensor in parts)
