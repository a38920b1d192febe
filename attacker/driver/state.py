"""What an attack has come to, on disk: a run that is resumed goes on with it, and shows it only the rounds since.

One safetensors file with a checksum each time that the coordinator makes a checkpoint too; the last two are kept. A
round that both of them have seen is no longer needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vfl.files import PRIVATE, PRIVATE_FOLDER, write_atomically
from vfl.files.tensor_file import DamagedError, read_tensors, write_tensors
from vfl.folder.transcript.files import parameters_name, round_name

FOLDER = "attack"
KEPT = 2


@dataclass(frozen=True)
class Kept:
    """A state, and after which round it was kept."""

    round: int
    tensors: dict[str, Tensor]


class States:
    """The states in a run's folder."""

    def __init__(self, out: Path) -> None:
        self._folder = out / FOLDER

    def write(self, number: int, tensors: Mapping[str, Tensor]) -> int:
        """Keep a state; return the last round that no state needs any more to go on from."""
        self._folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        path = self._folder / _name(number)
        about = {"round": str(number)}
        write_atomically(path, lambda partial: write_tensors(partial, tensors, about, checked=True), mode=PRIVATE)
        latest, *older = self._paths()[:KEPT]
        for superfluous in self._paths()[KEPT:]:
            superfluous.unlink()
        assert latest == path
        return _number(older[-1]) if len(older) == KEPT - 1 else 0

    def last(self, before: int) -> Kept:
        """Return the last good state of those that have seen no round after this one; of none it is an empty one."""
        for path in self._paths():
            if _number(path) <= before:
                try:
                    return Kept(_number(path), read_tensors(path, checked=True)[0])
                except DamagedError:
                    continue
        return Kept(0, {})

    def forget_after(self, number: int) -> None:
        """Remove what has seen rounds that are to be done again."""
        for path in self._paths():
            if _number(path) > number:
                path.unlink()

    def _paths(self) -> list[Path]:
        """Return the files, the latest first."""
        return sorted(self._folder.glob("state-*.safetensors"), reverse=True)


def thin(transcript: Path, number: int, version: int) -> None:
    """Remove the rounds up to this one from a transcript, and the parameters before its version."""
    for path in transcript.glob("*.safetensors"):
        if path.name <= round_name(number) and path.name.startswith("round-"):
            path.unlink(missing_ok=True)
        if path.name < parameters_name(version) and path.name.startswith("parameters-"):
            path.unlink(missing_ok=True)


def _name(number: int) -> str:
    return f"state-{number:07d}.safetensors"


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])
