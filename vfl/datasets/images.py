"""Pictures in folders: a folder is a class, its pictures are the samples."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from vfl.datasets import Data, DataSet, data_path, datasets
from vfl.errors import UserError
from vfl.limits import plain

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Formats that are read, whatever a file's ending: for some others Pillow starts programs."""

PARTS = {"train", "training", "test", "testing", "val", "valid", "validation"}
"""Names of folders that divide a data set, and so are no classes."""

LARGEST_SIDE = 4096
"""Pixels; a colour sample of this height and width takes 200 MB of memory."""


@datasets.register("images")
class Images(DataSet):
    """A folder with a folder for each class, or `train` and `test` of such; pictures of any size are made alike."""

    path: Path | None = None
    size: int | tuple[int, int] = Field(32, description="of a sample: pixels a side, or height and width")
    fit: Literal["resize", "crop"] = Field(
        "resize", description="resize: the whole picture, stretched; crop: scaled to cover, its middle kept"
    )
    colour: bool = Field(True, description="three channels; false: greyscale")

    @field_validator("size")
    @classmethod
    def _can_be_held(cls, size: int | tuple[int, int]) -> int | tuple[int, int]:
        sides = (size,) if isinstance(size, int) else size
        if not all(1 <= side <= LARGEST_SIDE for side in sides):
            raise ValueError(f"a side has 1 to {LARGEST_SIDE} pixels")
        return size

    def load(self) -> Data:
        """Read the pictures: classes by the names of their folders, samples taken from all classes in turn."""
        root = data_path(self.path)
        if not root.is_dir():
            raise UserError(f"data.path: there is no folder {root}")
        divided = (root / "train").is_dir()
        parts = sorted(path.name for path in _folders(root))
        if not divided and parts and PARTS.issuperset(name.lower() for name in parts):
            raise UserError(
                f"data.path: {plain(str(root))} has {plain(' and '.join(parts))}, which are no classes, and no train; "
                f"call the folder to train with train, or name one with a folder for each class"
            )
        train, names = self._read(root / "train" if divided else root, self.samples)
        test = None
        if divided and (root / "test").is_dir() and self.test_samples != 0:
            test, tested = self._read(root / "test", self.test_samples)
            if tested != names:
                classes, others = (plain(", ".join(own)) for own in (names, tested))
                raise UserError(f"data.path: {root}/train has the classes {classes}, test {others}")
        data = self._data("image", train[:2], test[:2] if test else None, ids=train[2], classes=len(names))
        return replace(data, label="folder", class_names=names)

    def _read(self, folder: Path, count: int | None) -> tuple[tuple[Tensor, Tensor, tuple[str, ...]], tuple[str, ...]]:
        classes = _folders(folder)
        if len(classes) < 2:
            raise UserError(f"data.path: {folder} has {len(classes)} folders; two or more are needed, one a class")
        pictures = [_pictures(path) for path in classes]
        # In turn, so that any number of first samples has all classes.
        turns = sorted((place, label) for label, own in enumerate(pictures) for place in range(len(own)))
        chosen = [(pictures[label][place], label) for place, label in turns][:count]
        x = torch.stack([self._pixels(path) for path, _ in chosen])
        ids = tuple(path.relative_to(folder).as_posix() for path, _ in chosen)
        return (x, torch.tensor([label for _, label in chosen]), ids), tuple(path.name for path in classes)

    def _pixels(self, path: Path) -> Tensor:
        """Return one picture (channels, height, width) in [0, 1], turned as its camera says."""
        from PIL import Image, ImageOps

        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        try:
            with Image.open(path, formats=FORMATS) as opened:
                turned = _eight_bits(ImageOps.exif_transpose(opened), opened.format, path)
                picture = turned.convert("RGB" if self.colour else "L")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise UserError(
                f"data.path: {plain(str(path))} cannot be read as a picture ({plain(str(error))}); remove or replace it"
            ) from None
        method = Image.Resampling.LANCZOS
        if self.fit == "crop":
            picture = ImageOps.fit(picture, (width, height), method)
        else:
            picture = picture.resize((width, height), method)
        pixels = torch.from_numpy(np.array(picture, dtype=np.float32) / 255)
        return pixels.permute(2, 0, 1).contiguous() if self.colour else pixels[None]


def _eight_bits(picture: "Image", kind: str | None, path: Path) -> "Image":
    """Scale grey pixels of 16 or 32 bits to 8: Pillow's own conversion makes white of everything above 255."""
    from PIL import Image

    sixteen = picture.mode.startswith("I;16") or (picture.mode == "I" and kind in ("PNG", "PPM"))
    if not sixteen and picture.mode not in ("I", "F"):
        return picture
    shown = plain(str(path))
    pixels = np.asarray(picture, dtype=np.float64) / (65535 if sixteen else 1)
    if picture.mode == "I" and not sixteen:
        raise UserError(
            f"data.path: {shown} has whole numbers of 32 bits as pixels, and nothing says which is white; "
            f"save it with 8 or 16 bits"
        )
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise UserError(
            f"data.path: {shown} has pixels from {pixels.min():g} to {pixels.max():g}; floating-point pixels are read "
            f"from 0, black, to 1, white: scale them, or save it with 8 or 16 bits"
        )
    return Image.fromarray(np.rint(pixels * 255).astype(np.uint8))


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures(folder: Path) -> list[Path]:
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not _is_hidden(path.relative_to(folder)) and path.is_file()
    )
    if not found:
        raise UserError(
            f"data.path: {plain(str(folder))} has no pictures ({', '.join(suffix[1:] for suffix in SUFFIXES)})"
        )
    return found


def _is_hidden(path: Path) -> bool:
    """Return whether a path has a hidden part: systems leave notes of their own beside pictures (macOS: ._name)."""
    return any(part.startswith(".") for part in path.parts)
