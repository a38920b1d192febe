"""A run's folder, watched: its journal is followed, its newest pictures and its result are kept at hand."""

import contextlib
import io
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vfl.errors import UserError
from vfl.files import is_own
from vfl.files.archive import ArchiveError, read_results
from vfl.folder.journal import Mark, Tail
from vfl.folder.schema import numbers_in, value_at
from vfl.folder.summary import Attack, load_summary
from vfl.folder.verdict import verdict
from vfl.limits import PICTURE_PIXELS
from vfl.ui.view import Estimate, View

FILES = ("report.html", "summary.json")
"""What people can open from the page, where the run's folder has it."""
NOT_OURS = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What comes of a line that is not of this version, or that was made up."""
PICTURES = 24
"""How many samples of an estimate are shown."""
GALLERIES = 8
"""Of how many estimates pictures are kept."""
ESTIMATES = re.compile(r"(snapshots/[0-9A-Za-z_-]{1,40}|recovered)\.npz")
"""Where estimates are, relative to the run's folder; the journal can name nothing else."""


class Watch:
    """What is known of a run; `refresh` looks for more, and may be called from one thread at a time.

    What was written before the mark `after` is an earlier run's.
    """

    def __init__(self, folder: Path, after: Mark = Mark()) -> None:  # noqa: B008
        self.folder = folder
        self.version = 0
        self.text = "{}"
        """The page's JSON, new with each version."""
        self.galleries: dict[int, Gallery] = {}
        """By number, the last ones: a slow browser may still ask for those before."""
        self.view = View()
        self._shown = 0
        self._estimate: Estimate | None = None
        self._tail = Tail(folder, from_start=True, after=after)
        self._result: dict[str, Any] | None = None
        self._files: list[str] = []
        self._compose()

    def refresh(self) -> None:
        """Take in what has come since the last time."""
        lines = self._tail.read()
        for line in lines:
            with contextlib.suppress(*NOT_OURS):
                self._take(line)
        if lines:
            self._load()
        over = self.view.state == "ended"
        files = [name for name in FILES if over and is_own(self.folder / name)]
        if lines or files != self._files:  # the report may come a moment after the summary
            self._files = files
            self._compose()

    def _take(self, line: dict[str, Any]) -> None:
        if self.view.state == "ended" and line.get("state") == "waiting":  # another run, in the same folder
            self.view, self._result, self.galleries = View(), None, {}
        self.view.add(line)

    def _load(self) -> None:
        """Read the newest pictures and, at the end, the result."""
        estimate = self.view.estimate
        if self.view.final and self._result is None:
            self._result = _result(self.folder)
            self._show("recovered.npz")  # the referee has put the samples in order and the truth beside them
        elif estimate is not None and estimate is not self._estimate:
            self._estimate = estimate
            self._show(estimate.file)

    def _show(self, file: str) -> None:
        found = load_gallery(self.folder, file)
        if found is not None:
            self._shown += 1
            self.galleries[self._shown] = found
            self.galleries.pop(self._shown - GALLERIES, None)

    def _compose(self) -> None:
        gallery = self.galleries.get(self._shown, Gallery())
        number = self._shown if gallery.samples else 0
        shown = {"number": number, "samples": gallery.samples, "real": bool(gallery.real)}
        tree = {"folder": self.folder.name, "pictures": shown, "result": self._result, "files": self._files}
        self.text = json.dumps(self.view.as_json() | tree)
        self.version += 1


def _result(folder: Path) -> dict[str, Any] | None:
    """Return what summary.json says at the end, in the few numbers that the page shows."""
    try:
        summary = load_summary(folder)
    except UserError:
        return None
    return {
        **summary.model_dump(mode="json", include={"ended", "rounds", "samples", "seconds", "bytes"}),
        **summary.train.model_dump(include={"loss_last", "test_accuracy"}),
        "attack": {one.key: value_at(summary.attack, one.place) for one in numbers_in(Attack)},
        "labels": None if summary.attack.labels is None else summary.attack.labels.model_dump(mode="json"),
        **summary.attack.model_dump(include={"elsewhere", "labels_named"}),
        "scored": summary.scored,
        "verdict": asdict(verdict(summary)),
    }


@dataclass(frozen=True)
class Gallery:
    """The pictures of one estimate, PNG each."""

    samples: tuple[int, ...] = ()
    recovered: tuple[bytes, ...] = field(default=(), repr=False)
    real: tuple[bytes, ...] = field(default=(), repr=False)


def load_gallery(folder: Path, file: str) -> Gallery | None:
    """Read an estimate's pictures; None if there are none: a table, another kind of file, or not there (any more)."""
    if not ESTIMATES.fullmatch(file) or ((folder / file).parent.is_symlink() and "/" in file):
        return None
    try:
        arrays = read_results(folder / file, ("x", "x_true", "told"))
    except (OSError, ArchiveError):
        return None
    x, truth = arrays.get("x", np.empty(0)), arrays.get("x_true")
    if x.dtype.kind != "f" or not x.size or x.ndim != 4 or x.shape[1] not in (1, 3) or x[0].size > PICTURE_PIXELS:
        return None
    if truth is not None and (truth.shape, truth.dtype.kind) != (x.shape, "f"):
        truth = None
    asked = np.flatnonzero(~_told(arrays.get("told"), len(x)))
    samples = asked[np.linspace(0, len(asked) - 1, min(PICTURES, len(asked))).round().astype(int)]
    return Gallery(
        samples=tuple(samples.tolist()),
        recovered=tuple(_png(x[sample]) for sample in samples),
        real=() if truth is None else tuple(_png(truth[sample]) for sample in samples),
    )


def _told(told: NDArray[np.generic] | None, samples: int) -> NDArray[np.bool_]:
    """Tell of each sample whether the adversary knew it from elsewhere, and so has not rebuilt it."""
    fits = told is not None and (told.shape, told.dtype.kind) == ((samples,), "b")
    return told.astype(bool) if told is not None and fits else np.zeros(samples, dtype=bool)


def _png(picture: NDArray[np.floating]) -> bytes:
    """Encode (channels, height, width); what was not recovered is grey."""
    pixels = (np.nan_to_num(picture, nan=0.5).clip(0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, format="PNG")
    return file.getvalue()
