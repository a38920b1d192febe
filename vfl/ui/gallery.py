"""The pictures of an estimate: a few samples as PNG files, and the real ones beside them where the folder has them."""

import io
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vfl.files.archive import ArchiveError, read_archive

SHOWN = 24
FILES = re.compile(r"(snapshots/[0-9A-Za-z_-]{1,40}|recovered)\.npz")
"""Where estimates are, relative to the run's folder; the journal can name nothing else."""


@dataclass(frozen=True)
class Gallery:
    """The pictures of one estimate, PNG each."""

    samples: tuple[int, ...] = ()
    recovered: tuple[bytes, ...] = field(default=(), repr=False)
    real: tuple[bytes, ...] = field(default=(), repr=False)


def load_gallery(folder: Path, file: str) -> Gallery | None:
    """Read an estimate's pictures; None if there are none: a table, another kind of file, or not there (any more)."""
    if not FILES.fullmatch(file):
        return None
    try:
        arrays = read_archive(folder / file, ("x", "x_true"))
    except (OSError, ArchiveError):
        return None
    x, truth = arrays.get("x", np.empty(0)), arrays.get("x_true")
    if x.dtype.kind != "f" or not x.size or x.ndim != 4 or x.shape[1] not in (1, 3):
        return None
    if truth is not None and (truth.shape, truth.dtype.kind) != (x.shape, "f"):
        truth = None
    samples = np.linspace(0, len(x) - 1, min(SHOWN, len(x))).round().astype(int)
    return Gallery(
        samples=tuple(samples.tolist()),
        recovered=tuple(_png(x[sample]) for sample in samples),
        real=() if truth is None else tuple(_png(truth[sample]) for sample in samples),
    )


def _png(picture: NDArray[np.floating]) -> bytes:
    """Encode (channels, height, width); what was not recovered is grey."""
    pixels = (np.nan_to_num(picture, nan=0.5).clip(0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, format="PNG")
    return file.getvalue()
