"""A run's folder, watched: its journal is followed, its newest pictures and its result are kept at hand."""

import contextlib
import json
from pathlib import Path
from typing import Any

from vfl.errors import UserError
from vfl.files import is_own
from vfl.folder.journal import Tail
from vfl.folder.schema import numbers_in, value_at
from vfl.folder.summary import Attack, load_summary
from vfl.folder.words import verdict
from vfl.ui.gallery import Gallery, load_gallery
from vfl.ui.view import Estimate, View

FILES = ("report.html", "summary.json")
"""What people can open from the page, where the run's folder has it."""
NOT_OURS = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What comes of a line that is not of this version, or that was made up."""


class Watch:
    """What is known of a run; `refresh` looks for more, and may be called from one thread at a time.

    What was written before `since` (Unix seconds) is an earlier run's.
    """

    def __init__(self, folder: Path, since: float = 0.0) -> None:
        self.folder, self._since = folder, since
        self.version = 0
        self.text = "{}"
        """The page's JSON, new with each version."""
        self.galleries: dict[int, Gallery] = {}
        """By number, the last two: the browser may still ask for the one before."""
        self.view = View()
        self._shown = 0
        self._estimate: Estimate | None = None
        self._tail = Tail(folder, from_start=True)
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
        if line["t"] < self._since:
            return
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
            before = {number: self.galleries[number] for number in self.galleries if number == self._shown}
            self._shown += 1
            self.galleries = before | {self._shown: found}

    def _compose(self) -> None:
        gallery = self.galleries.get(self._shown, Gallery())
        shown = {
            "number": self._shown if gallery.samples else 0,
            "samples": gallery.samples,
            "real": bool(gallery.real),
        }
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
        "verdict": verdict(summary),
    }
