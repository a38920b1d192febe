"""What a run's folder holds, as far as it is there: the summary, what was recovered, the photographs."""

import math
import os
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from vfl.files import is_own
from vfl.files.archive import ArchiveError, read_results
from vfl.folder.summary import Summary, load_summary
from vfl.limits import PICTURE_PIXELS, PICTURES, plain
from vfl.maths.metrics import psnr
from vfl.partition import Box, partition

ARRAYS = {
    "x": "f", "x_true": "f", "certificates": "f", "certified": "b", "labels": "i", "labels_true": "i", "targets": "f",
    "targets_true": "f", "told": "b",
}  # fmt: skip
"""What is read of recovered.npz, and the kind of numbers in it; each has one or one row a sample."""


@dataclass(frozen=True)
class RunFolder:
    """A run as its folder tells it."""

    path: Path
    summary: Summary
    arrays: dict[str, np.ndarray]
    numbers: np.ndarray = field(default_factory=lambda: np.arange(0))
    """Which samples of the run the arrays are of: all that the adversary did not know from elsewhere."""
    problem: str = ""
    """Why the arrays cannot be read, if they are there and cannot."""

    @property
    def x(self) -> np.ndarray | None:
        """Return the recovered samples, if the attack got that far."""
        return self.arrays.get("x")

    @property
    def truth(self) -> np.ndarray | None:
        """Return the real samples, if a referee put them beside the recovered ones."""
        truth = self.arrays.get("x_true")
        return truth if truth is not None and self.x is not None and truth.shape == self.x.shape else None

    @property
    def kind(self) -> Literal["image", "table"] | None:
        """Return what the recovered samples are."""
        return None if self.x is None else {4: "image", 2: "table"}.get(self.x.ndim)  # type: ignore[return-value]

    @cached_property
    def psnr(self) -> np.ndarray | None:
        """Return the PSNR of each image, if there is a truth to compare with."""
        if self.x is None or self.truth is None or self.kind != "image":
            return None
        return psnr(torch.tensor(self.x), torch.tensor(self.truth)).numpy()

    @cached_property
    def certificates(self) -> np.ndarray | None:
        """Return the worst certificate of each sample, NaN where it has none at some worker."""
        found = self.arrays.get("certificates")
        if found is None or found.ndim != 2 or not found.size:
            return None
        worst: np.ndarray = found.max(axis=1)
        return worst

    @cached_property
    def boxes(self) -> list[Box]:
        """Return each worker's part of an image; a table's columns say themselves who holds them."""
        if self.x is None or self.kind != "image" or self.runs:
            return []
        federation = self.summary.config.federation
        return partition(self.x.shape[1:], federation.holders, federation.slices)

    @property
    def runs(self) -> list[slice]:
        """Return which samples each worker of a horizontal federation holds; none in a vertical one."""
        return [slice(*ends) for ends in pairwise(accumulate(self.summary.shares or (), initial=0))]

    @property
    def photographs(self) -> list[Path]:
        """Return the photographs that the referee put together, real beside recovered, and no more than it would."""
        return sorted(path for path in self.path.glob("photograph_*.png") if is_own(path))[:PICTURES]


def read_run(path: Path) -> RunFolder:
    """Read a run's folder; arrays that cannot be read are missing, a summary that is none is an error."""
    summary = load_summary(path)
    file = path / "recovered.npz"
    if not os.path.lexists(file):
        return RunFolder(path, summary, {})
    try:
        arrays = read_results(file, ARRAYS)
        check_arrays(arrays)
    except (OSError, ArchiveError) as error:
        return RunFolder(path, summary, {}, problem=f"recovered.npz cannot be read: {plain(str(error))}")
    told = arrays.pop("told", None)
    if told is None:
        return RunFolder(path, summary, arrays, np.arange(max(map(len, arrays.values()), default=0)))
    return RunFolder(path, summary, {name: array[~told] for name, array in arrays.items()}, np.flatnonzero(~told))


def check_arrays(arrays: dict[str, np.ndarray]) -> None:
    """Raise ArchiveError for arrays that no run writes."""
    for name, array in arrays.items():
        if array.dtype.kind != ARRAYS[name] or array.dtype.itemsize > 8 or not array.size:
            raise ArchiveError(f"{name} is {array.dtype} of shape {array.shape}")
        if name in ("x", "x_true") and math.prod(array.shape[1:]) > PICTURE_PIXELS:
            raise ArchiveError(f"{name} has samples of {math.prod(array.shape[1:])} numbers")
        if "told" in arrays and array.shape[:1] != (arrays["told"].size,):
            raise ArchiveError(f"it says of {arrays['told'].size} samples whether they were known, and has {name}")
        if "x" in arrays and len(array) != len(arrays["x"]):
            raise ArchiveError(f"it has {len(arrays['x'])} samples, and {name} for {len(array)}")
