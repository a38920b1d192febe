"""Any NumPy archive with samples and labels."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vfl.datasets import Data, DataSet, data_path, datasets, standardised
from vfl.errors import UserError


@datasets.register("npz")
class Npz(DataSet):
    """A file with x_train, y_train and, where present, x_test, y_test (or x, y): images or table rows."""

    path: Path

    def load(self) -> Data:
        """Read the file: uint8 images become [0, 1], table columns are standardised."""
        path = data_path(self.path)
        arrays = _read(path)
        prefix = "_train" if "x_train" in arrays else ""
        for key in (f"x{prefix}", f"y{prefix}"):
            if key not in arrays:
                raise UserError(f"data.path: {path} has no array {key}; it has {', '.join(sorted(arrays)) or 'none'}")
        x, y = arrays[f"x{prefix}"], _labels(arrays[f"y{prefix}"], path)
        _check(x, y, path)
        tested = "x_test" in arrays and "y_test" in arrays
        y_test = _labels(arrays["y_test"], path) if tested else None
        if y_test is not None:
            _check(arrays["x_test"], y_test, path)
            if arrays["x_test"].shape[1:] != x.shape[1:]:
                raise UserError(f"data.path: {path} has test samples of another shape than its training samples")
        ids = tuple(map(str, arrays["ids"])) if "ids" in arrays else None
        if x.ndim == 2:
            train, test = standardised(
                torch.tensor(x, dtype=torch.float32),
                torch.tensor(arrays["x_test"], dtype=torch.float32) if tested else None,
            )
            names = tuple(map(str, arrays.get("feature_names", [])))
            return self._data(
                "table", (train, y), (test, y_test) if test is not None and y_test is not None else None, names, ids
            )
        images = _images(x, path)
        held_out = (_images(arrays["x_test"], path), y_test) if y_test is not None else None
        return self._data("image", (images, y), held_out, (), ids)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UserError(f"data.path: {path} is a single array, expected an .npz archive")
            return {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        raise UserError(f"data.path: there is no file {path}") from None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"data.path: {path} cannot be read as an .npz archive without pickles: {error}") from None


def _check(x: np.ndarray, y: Tensor, path: Path) -> None:
    if not np.issubdtype(x.dtype, np.number) or x.ndim < 2 or not x.size:
        raise UserError(
            f"data.path: {path} must hold numbers, a row or image a sample, got {x.dtype} of shape {x.shape}"
        )
    if len(x) != len(y):
        raise UserError(f"data.path: {path} has {len(x)} samples and {len(y)} labels")
    if not np.isfinite(x).all():
        raise UserError(f"data.path: {path} has missing or infinite values; fill or drop them first")


def _labels(y: np.ndarray, path: Path) -> Tensor:
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise UserError(
            f"data.path: labels in {path} must be one whole number a sample, got {y.dtype} of shape {y.shape}"
        )
    return torch.tensor(y.astype(np.int64))


def _images(x: np.ndarray, path: Path) -> Tensor:
    """Return (N, channels, height, width) in [0, 1] from gray (N, H, W), or colour with channels last or first."""
    pixels = torch.tensor(x, dtype=torch.float32)
    if x.dtype == np.uint8:
        pixels /= 255
    elif pixels.numel() and not (float(pixels.min()) >= 0 and float(pixels.max()) <= 1):
        raise UserError(f"data.path: images in {path} must be uint8, or floats from 0 to 1")
    if pixels.dim() == 3:
        return pixels.unsqueeze(1)
    if pixels.dim() == 4 and pixels.shape[3] in (1, 3):
        return pixels.permute(0, 3, 1, 2).contiguous()
    if pixels.dim() == 4 and pixels.shape[1] in (1, 3):
        return pixels
    raise UserError(
        f"data.path: images in {path} have shape {tuple(x.shape)}, expected (N,H,W), (N,H,W,C) or (N,C,H,W)"
    )
