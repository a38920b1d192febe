"""Recovered images as PNG data URIs: examples beside the truth, a wall of them all, photographs."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from PIL import Image

from vfl.limits import PICTURE_PIXELS
from vfl.report.folder import RunFolder

EACH = 4
"""How many of the best, of the typical and of the worst images are shown beside the truth."""
LONGEST_SIDE = 96
"""Larger images are made smaller for the page; recovered.npz has them as they are."""
MOST_ON_WALL = 2000
TRIED = 16
"""How many images of the wall are made first, to see how large they are."""
MARGIN = 1.02
BRIGHT = 0.25
"""The difference that the brightest colour stands for."""
WALL_PIXELS = 64_000_000
"""Of all images on the wall, before they are made smaller: it decides how long the page takes."""
PHOTOGRAPH_BYTES = 500_000
ALL_BYTES = 3_400_000
"""What all pictures may take; as base64 in the page they are a third larger, and the page must stay below 5 MB."""


@dataclass(frozen=True)
class Picture:
    """An image for the page."""

    uri: str
    alt: str
    width: int
    height: int
    size: int = 0
    """The bytes of the PNG."""


@dataclass(frozen=True)
class Example:
    """A sample beside the truth."""

    sample: int
    psnr: float
    pictures: tuple[tuple[str, Picture], ...]


@dataclass(frozen=True)
class Wall:
    """Recovered images, and of how many they are a sample."""

    pictures: tuple[Picture, ...]
    of: int
    order: str


class Album:
    """All pictures of a page, within what they may take together."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._left = ALL_BYTES

    def photographs(self) -> list[Picture]:
        """Return the photographs put together again, smaller where they are too large for the page."""
        files, pixels, found = self._run.photographs, PICTURE_PIXELS, list[Picture]()
        for path in files:
            picture, taken = _photograph(path, PHOTOGRAPH_BYTES // len(files), pixels)
            pixels -= taken
            found += [picture] if picture else []
        self._left -= sum(picture.size for picture in found)
        return found

    def examples(self) -> list[tuple[str, list[Example]]]:
        """Return the best, typical and worst images, each real, rebuilt, and the difference of the two."""
        if self._run.psnr is None:
            return []
        order = _ranked(self._run)[0]
        each = max(1, min(EACH, len(order) // 3))
        middle = (len(order) - each) // 2
        groups = {"Best": order[:each], "Typical": order[middle : middle + each], "Worst": order[-each:][::-1]}
        shown: list[tuple[str, list[Example]]] = []
        seen: set[int] = set()
        for name, members in groups.items():
            new = [int(sample) for sample in members if int(sample) not in seen]
            seen |= set(new)
            if new:
                shown.append((name, [self._example(sample) for sample in new]))
        return shown

    def wall(self) -> Wall | None:
        """Return all recovered images, best first, or an even sample of them where all would be too large."""
        run = self._run
        if run.kind != "image" or run.x is None or not len(run.x):
            return None
        order, words = _ranked(run)
        drawn = max(1, WALL_PIXELS // run.x[0].size)
        tried = [self._recovered(int(sample)).size for sample in order[_even(len(order), min(TRIED, drawn))]]
        most = int(min(MOST_ON_WALL, drawn, self._left // (max(tried) * MARGIN)))
        chosen = order[_even(len(order), max(1, most))]
        return Wall(tuple(self._recovered(int(sample)) for sample in chosen), len(run.x), words)

    def _example(self, sample: int) -> Example:
        run = self._run
        assert run.x is not None
        assert run.truth is not None
        assert run.psnr is not None
        value = float(run.psnr[sample])
        apart = difference(run.x[sample], run.truth[sample])
        pictures = (
            ("real", encode(as_pixels(run.truth[sample]), f"Sample {run.numbers[sample]}, real")),
            ("rebuilt", self._recovered(sample)),
            ("difference", encode(apart, f"Sample {run.numbers[sample]}, the difference between real and rebuilt")),
        )
        self._left -= sum(picture.size for _, picture in pictures)
        return Example(int(run.numbers[sample]), value, pictures)

    def _recovered(self, sample: int) -> Picture:
        run = self._run
        assert run.x is not None
        score = f", {run.psnr[sample]:.1f} dB" if run.psnr is not None else ""
        lost = "" if np.isfinite(run.x[sample]).all() else ", not or not wholly recovered"
        return encode(as_pixels(run.x[sample]), f"Sample {run.numbers[sample]}, rebuilt{score}{lost}")


def as_pixels(image: np.ndarray) -> np.ndarray:
    """Return an image (channels, height, width) in [0, 1] as bytes; what is unknown is grey."""
    known = np.clip(np.nan_to_num(image.astype(np.float64), nan=0.5, posinf=1.0, neginf=0.0), 0, 1)
    if known.shape[0] not in (1, 3):
        known = known.mean(axis=0, keepdims=True)
    levels: np.ndarray = np.round(known * 255).astype(np.uint8)
    return levels[0] if levels.shape[0] == 1 else levels.transpose(1, 2, 0)


def difference(x: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the absolute difference, mean over the channels, in colours: black is none, bright `BRIGHT` or more."""
    known = np.clip(np.nan_to_num(x.astype(np.float64), nan=0.5, posinf=1.0, neginf=0.0), 0, 1)
    apart = np.abs(known - truth).mean(axis=0) / BRIGHT
    colours: np.ndarray = colormaps["inferno"](np.clip(apart, 0, 1), bytes=True)
    return colours[..., :3]


def encode(pixels: np.ndarray, alt: str) -> Picture:
    """Return pixels as a picture for the page, no larger than `LONGEST_SIDE`."""
    image = Image.fromarray(pixels)
    if max(image.size) > LONGEST_SIDE:
        image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    return _picture(image, alt)


def _photograph(path: Path, most: int, pixels: int) -> tuple[Picture | None, int]:
    """Return a photograph for the page, None for what the referee has not written; and of `pixels` how many it took."""
    name = path.stem.removeprefix("photograph_")
    alt = f"The photograph {name}: real on the left, put together from the rebuilt tiles on the right"
    try:
        with Image.open(path, formats=("PNG",)) as file:
            taken = file.width * file.height
            if taken > pixels:  # before any of them is unpacked
                return None, 0
            image = file.copy()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None, 0
    picture = _picture(image, alt)
    while picture.size > most and min(image.size) > 1:
        image = image.resize((max(1, image.width // 2), max(1, image.height // 2)))
        picture = _picture(image, alt)
    return picture, taken


def _picture(image: Image.Image, alt: str) -> Picture:
    file = io.BytesIO()
    image.save(file, format="PNG")
    uri = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
    return Picture(uri, alt, image.width, image.height, file.tell())


def _ranked(run: RunFolder) -> tuple[np.ndarray, str]:
    """Return the samples from the best to the worst, as far as it is known, and by what."""
    assert run.x is not None
    if run.psnr is not None and run.truth is not None:
        contrast = run.truth.reshape(len(run.truth), -1).std(axis=1)  # many may be at the cap: the telling ones first
        return np.lexsort((-contrast, -run.psnr)), "from the highest PSNR to the lowest"
    if run.certificates is not None and len(run.certificates) == len(run.x):
        return np.argsort(run.certificates, kind="stable"), "from the best certificate to the worst"
    return np.arange(len(run.x)), "in the order of the samples"


def _even(count: int, most: int) -> Sequence[Any] | np.ndarray:
    """Return at most so many places, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
