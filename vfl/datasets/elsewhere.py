"""The truth behind gradients that another system computed, where whoever recorded them gave it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from pydantic import Field

from vfl.datasets import Data, DataSet, datasets
from vfl.datasets.columns import Column
from vfl.errors import UserError
from vfl.files.archive import ArchiveError, read_archive
from vfl.limits import plain

ARRAYS = ("x", "y", "columns", "mean", "deviation")
"""The arrays of a truth.npz: samples as the network sees them, labels; a table's columns and their units."""


@datasets.register("elsewhere")
class Elsewhere(DataSet):
    """What `vfl.record` was given as the truth; without it a recorded transcript is attacked, and not scored."""

    path: Path | None = Field(None, description="the truth.npz that vfl.record wrote")
    classes: int | None = Field(None, ge=1)

    def load(self) -> Data:
        """Read the samples as the network saw them: nothing is scaled."""
        if self.path is None:
            raise UserError("whoever recorded the gradients gave no truth (vfl.record(truth=...))")
        try:
            arrays = read_archive(self.path, ARRAYS)
        except FileNotFoundError:
            raise UserError(f"there is no file {self.path}; say where it is: --set data.path=FILE") from None
        except (OSError, ArchiveError) as error:
            raise UserError(f"{self.path} cannot be read: {plain(str(error))}") from None
        x, y = (arrays.get(name, np.zeros(0)) for name in ("x", "y"))
        if x.ndim not in (2, 4) or x.dtype.kind != "f" or y.dtype.kind not in "iuf" or y.shape != (len(x),):
            raise UserError(f"{self.path} holds no samples x, rows or images in float32, with as many labels y")
        is_number = y.dtype.kind == "f"
        samples = torch.tensor(x, dtype=torch.float32), torch.tensor(y.astype(np.float32 if is_number else np.int64))
        data = self._data("table" if x.ndim == 2 else "image", samples, classes=1 if is_number else self.classes)
        if is_number:
            data = replace(data, target=Column("label"), label="label")
        return replace(data, columns=_columns(arrays, x, self.path)) if x.ndim == 2 else data


def _columns(arrays: dict[str, np.ndarray], x: np.ndarray, path: Path) -> tuple[Column, ...]:
    """Return a table's columns, in the units that the recorder was told."""
    width = x.shape[1]
    names = arrays.get("columns", np.array([f"column {at}" for at in range(width)]))
    mean, deviation = arrays.get("mean", np.zeros(width)), arrays.get("deviation", np.ones(width))
    for what, array in (("columns", names), ("mean", mean), ("deviation", deviation)):
        if array.shape != (width,) or (what != "columns" and not np.isfinite(array).all()):
            raise UserError(f"{path} has {what} of shape {array.shape}, expected one for each of {width} columns")
    return tuple(
        Column(plain(str(name)), mean=float(middle), deviation=float(spread))
        for name, middle, spread in zip(names, mean, deviation, strict=True)
    )
