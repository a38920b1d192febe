"""A transcript that is thinned behind its reader: a few rounds wait in memory, further ones in the run's folder."""

import os
import shutil
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vfl.files import PRIVATE_FOLDER
from vfl.files.tensor_file import write_tensors
from vfl.folder.transcript.files import files_of
from vfl.limits import RESERVE_BYTES
from vfl.observation import PartyObservation

SLOTS = 4
"""Rounds that wait in memory; those beyond them wait on disk."""
LARGE = 1_000_000
"""Bytes of a round above which new pages in the kernel's cache take more time than waiting for the disk."""
SLOW_DISK = 100_000_000
"""Bytes a second below which rounds are left to the kernel's cache, which writes them when it comes to it."""
SHARED_MEMORY = Path("/dev/shm")  # what is made in it has a name of its own, and is ours alone  # nosec B108


@dataclass(frozen=True)
class Places:
    """Where a run's rounds are; the coordinator and the attack both know, and the last one of them clears up."""

    disk: Path
    memory: Path | None
    """None if the transcript is kept: all rounds are on disk then, and stay there."""

    @classmethod
    def make(cls, out: Path, *, kept: bool) -> "Places":
        """Choose the folders for a run."""
        shared = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        memory = None if kept else Path(tempfile.mkdtemp(prefix=f"cafe-rounds-{os.getpid()}-", dir=shared))
        return cls(out.resolve() / ("transcript" if kept else "waiting"), memory)

    def find(self, name: str) -> Path:
        """Return where a file is."""
        if self.memory is not None and (self.memory / name).exists():
            return self.memory / name
        return self.disk / name

    def discard(self, path: Path) -> None:
        """Remove a file that was read, unless it is to be kept; the coordinator writes over those in memory."""
        if self.memory is not None and path.parent == self.disk:
            path.unlink()

    def clear(self) -> None:
        """Remove all that is not to be kept."""
        if self.memory is not None:
            shutil.rmtree(self.memory, ignore_errors=True)
            with suppress(OSError):  # the other process may be clearing too
                for path in self.disk.glob("*.safetensors"):
                    path.unlink(missing_ok=True)
                self.disk.rmdir()


class Spool:
    """Writes rounds for a reader that takes them in order."""

    def __init__(self, places: Places) -> None:
        assert places.memory is not None
        self._disk, self._memory = places.disk, places.memory
        self._unread: deque[_Slot | None] = deque()
        self._spare: list[_Slot] = []
        self._slots = 0
        self._needed = 0
        """Bytes that the last round would have taken in memory, and as many again."""
        self._version = 0
        self._direct_bytes, self._direct_seconds = 0, 0.0
        """What went to the disk past the kernel's cache, and how long that took."""

    @property
    def has_room(self) -> bool:
        """Whether another round can be written: into a slot, or on a disk that is not about to be full."""
        return self._has_slot or shutil.disk_usage(self._disk.parent).free > RESERVE_BYTES

    def write(self, observation: PartyObservation) -> bool:
        """Write a round, with its parameters if they are new; return whether it waits on disk."""
        files = list(files_of(observation, new_parameters=observation.version != self._version))
        self._version = observation.version
        size = sum(tensor.nbytes for file in files for tensor in file.tensors.values())
        self._needed = 2 * size
        self._unread.append(slot := self._take_slot())
        if slot is None:
            self._disk.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        direct, began = slot is None and size > LARGE and self._disk_is_quick, time.monotonic()
        for file in files:
            path = self._disk / file.name if slot is None else slot.file(file.name)
            write_tensors(path, file.tensors, file.about, direct=direct)
        if direct:
            self._direct_bytes += size
            self._direct_seconds += time.monotonic() - began
        return slot is None

    def was_read(self) -> None:
        """Note that the reader is done with its oldest round."""
        slot = self._unread.popleft()
        if slot is not None:
            self._spare.append(slot)

    @property
    def _disk_is_quick(self) -> bool:
        """Whether to go on past the cache: no disk is called slow before a second of writing so, and then for good."""
        return self._direct_seconds < 1 or self._direct_bytes > self._direct_seconds * SLOW_DISK

    @property
    def _has_slot(self) -> bool:
        new = self._slots < SLOTS and shutil.disk_usage(self._memory).free >= self._needed
        return bool(self._spare) or new

    def _take_slot(self) -> "_Slot | None":
        if not self._spare and self._has_slot:
            self._slots += 1
            return _Slot(self._memory)
        return self._spare.pop() if self._spare else None


class _Slot:
    """Files in memory that are renamed and written over once they were read: new memory takes several times as long."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Path] = {}

    def file(self, name: str) -> Path:
        """Return the slot's file of this kind (round or parameters) under its new name."""
        kind, path = name.partition("-")[0], self._folder / name
        if kind in self._files:
            self._files[kind].rename(path)
        self._files[kind] = path
        return path
