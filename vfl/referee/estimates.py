"""The attack's estimates while a run goes on, noted in its journal, with scores where the truth is here."""

from pathlib import Path

import numpy as np
import torch

from vfl.config import RunConfig
from vfl.datasets import Data
from vfl.files.archive import read_archive
from vfl.folder.journal import Journal
from vfl.folder.lookout import Lookout
from vfl.folder.recovered import PARTIAL
from vfl.maths.metrics import REBUILT, psnr
from vfl.referee import what_is_scored


class Estimates(Lookout):
    """Looks for new estimates in a run's folder, in a thread, for as long as the block lasts."""

    def __init__(self, out: Path, truth: tuple[Data, RunConfig] | None = None) -> None:
        super().__init__()
        self._out, self._truth = out, truth
        self._journal = Journal(out)
        self._known = self._there()  # an earlier run's

    def look(self) -> None:
        """Note the newest estimate in the journal, if it is a new one."""
        there = self._there()
        new = [path for path in there if self._known.get(path) != there[path]]
        self._known = there
        if new:
            self._note(new[-1])

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def _there(self) -> dict[Path, tuple[int, int]]:
        """Return the estimates with what changes when one is written anew, the newest last."""
        found = {}
        for path in (self._out / PARTIAL).parent.glob("*.npz"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found[path] = (status.st_mtime_ns, status.st_ino)
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def _note(self, path: Path) -> None:
        try:
            arrays = read_archive(path)
        except FileNotFoundError:  # the attack has ended meanwhile
            return
        done = int(np.isfinite(arrays["x"]).reshape(len(arrays["x"]), -1).all(1).sum())
        values = self._psnr(arrays)
        self._journal.estimate(
            int(arrays["round"]) if "round" in arrays else None,
            path.relative_to(self._out).as_posix(),
            samples_done=done,
            psnr_mean=None if values is None else float(values.mean()),
            share_30db=None if values is None else float((values >= REBUILT).double().mean()),
        )

    def _psnr(self, arrays: dict[str, np.ndarray]) -> torch.Tensor | None:
        if self._truth is None or self._truth[0].kind != "image":
            return None
        return psnr(*what_is_scored(arrays, *self._truth))
