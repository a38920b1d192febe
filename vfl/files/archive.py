"""NumPy archives from any source: no pickle is opened, and no array takes more memory than the file holds."""

import math
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil

from vfl.files import refuse_irregular, write_atomically
from vfl.limits import ARCHIVE_BYTES, RESULT_BYTES

T = TypeVar("T")
COPIES = 6
"""How often results are in memory while they are compared with the truth."""
_SINGLE = b"\x93NUMPY"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class ArchiveError(ValueError):
    """A file that is no archive of plain arrays; the message says why."""


def read_archive(path: Path, wanted: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Return those of the wanted arrays that are there, or all, numbers in this machine's byte order."""
    return _opened(path, lambda archive: _read(archive, wanted))


def read_results(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Return those of the wanted arrays that are in the archive of a run's folder, which may be anybody's.

    A run packs none of them, so that they take no more memory than the file has bytes; nor is there a link in a run's
    folder. They may take a part of the memory that is free, as what is drawn of them takes some too.
    """
    refuse_irregular(path, links=False)
    limit = min(RESULT_BYTES, psutil.virtual_memory().available // COPIES)
    return _opened(path, lambda archive: _read(archive, wanted, limit=limit, packed=False))


def read_shapes(path: Path, wanted: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of those of the wanted arrays that are there, without reading them."""
    return _opened(
        path, lambda archive: {name: _check_header(archive, name, info) for name, info in _members(archive, wanted)}
    )


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an .npz archive."""

    def write(target: Path) -> None:
        with target.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    write_atomically(path, write)


def _opened(path: Path, read: Callable[[zipfile.ZipFile], T]) -> T:
    refuse_irregular(path)
    with path.open("rb") as file:
        if file.read(len(_SINGLE)) == _SINGLE:
            raise ArchiveError("it is a single array, expected an .npz archive")
        try:
            with zipfile.ZipFile(file) as archive:
                return read(archive)
        except ArchiveError:
            raise
        except Exception as error:  # broken bytes raise errors of many kinds in zipfile, its decompressors and NumPy
            raise ArchiveError(f"{error or type(error).__name__}") from None


def _read(
    archive: zipfile.ZipFile, wanted: Collection[str] | None, *, limit: int = ARCHIVE_BYTES, packed: bool = True
) -> dict[str, np.ndarray]:
    members = dict(_members(archive, wanted))
    total = sum(info.file_size for info in members.values())
    if total > limit:
        raise ArchiveError(f"its arrays unpack to {total} bytes, the limit is {limit}")
    if not packed and any(info.compress_type != zipfile.ZIP_STORED for info in members.values()):
        raise ArchiveError("its arrays are packed, and no run packs them")
    for name, info in members.items():
        _check_header(archive, name, info)
    arrays = {}
    for name, info in members.items():
        with archive.open(info) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
        arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False) if array.dtype.kind in "iuf" else array
    return arrays


def _members(archive: zipfile.ZipFile, wanted: Collection[str] | None) -> list[tuple[str, zipfile.ZipInfo]]:
    named = [(info.filename.removesuffix(".npy"), info) for info in archive.infolist()]
    chosen = [(name, info) for name, info in named if wanted is None or name in wanted]
    for name, info in chosen:
        # NumPy writes no others; and other methods zipfile unpacks whole before it checks the announced size
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ArchiveError(f"{name} is compressed in a way that .npz archives are not (only deflate is read)")
    return chosen


def _check_header(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> tuple[int, ...]:
    """Make sure, before memory is taken for it, that an array is as large as its header says; return its shape."""
    with archive.open(info) as file:
        read_header = _HEADERS.get(np.lib.format.read_magic(file))
        if read_header is None:
            raise ArchiveError(f"{name} is not a plain array")
        shape, _, dtype = read_header(file)
        announced = math.prod(shape) * dtype.itemsize
    if announced > info.file_size and not dtype.hasobject:
        raise ArchiveError(f"{name} announces {announced} bytes and has {info.file_size}")
    return tuple(shape)
