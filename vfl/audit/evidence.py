"""What a manager looks at: rows or images real and rebuilt side by side, and each column's error in its own unit."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vfl.audit.judgement import is_worse, who
from vfl.audit.schema import Attempt, ColumnFacts, Example, Examples, Finding
from vfl.config import RunConfig
from vfl.datasets import Data
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.files import read_plain
from vfl.files.archive import ArchiveError, read_archive
from vfl.folder.summary import load_summary
from vfl.limits import JSON_BYTES
from vfl.maths.metrics import psnr
from vfl.report.images import as_pixels, encode
from vfl.report.tables import value_words

SHOWN = 5
"""How many rows are shown side by side."""
MOST_COLUMNS = 10


@dataclass(frozen=True)
class Evidence:
    """The truth, in simulation only."""

    data: Data
    config: RunConfig

    @classmethod
    def of(cls, config: RunConfig) -> "Evidence | None":
        """Load the truth; None where it is not here."""
        try:
            return cls(load_data(config), config)
        except UserError:
            return None

    def shown(self, out: Path, attempts: Sequence[Attempt]) -> dict[str, Any]:
        """Return what the worst attacks on each kind of data show."""
        tables = _worst(attempts, "columns")
        labels = _worst(attempts, "labels")
        examples = [self._rows(out, one) for one in tables[:2]] + [self._labels(out, one) for one in labels[:1]]
        examples = [self._images(out, one) for one in _worst(attempts, "images")[:2]] + examples
        columns = [line for one in tables[:1] for line in self._columns(out, one)]
        return {"examples": [one for one in examples if one is not None], "columns": columns}

    def _rows(self, out: Path, finding: Finding) -> Examples | None:
        """Return rows of the party that the finding is about, as the referee wrote them down."""
        try:
            written = json.loads(read_plain(out / finding.evidence / "rows.json", JSON_BYTES))
        except (OSError, ValueError):
            return None
        own = {column.name for column in load_summary(out / finding.evidence).attack.columns}
        places = [place for place, name in enumerate(written["columns"]) if name in own][:MOST_COLUMNS]
        rows = [
            Example(
                name=str(name),
                real=[_exactly(real[at]) for at in places],
                found=[_exactly(found[at]) for at in places],
            )
            for name, real, found in zip(written["ids"], written["real"], written["recovered"], strict=True)
        ]
        names = [str(written["columns"][at]) for at in places]
        return Examples(adversary=who(finding.adversary), attack=finding.attack, columns=names, rows=rows[:SHOWN])

    def _images(self, out: Path, finding: Finding) -> Examples | None:
        arrays, attack = _arrays(out / finding.evidence), load_summary(out / finding.evidence).attack
        if "x" not in arrays or "x_true" not in arrays:
            return None
        found, real = arrays["x"][:SHOWN], arrays["x_true"][:SHOWN]
        scores = psnr(torch.tensor(found), torch.tensor(real)).tolist()
        rows = []
        for name, x, truth, score in zip(self.data.ids, found, real, scores, strict=False):
            pictures = [encode(as_pixels(one), "").uri for one in (truth, x)]
            rows.append(Example(name=str(name), real=["–"], found=[f"{score:.1f} dB"], pictures=pictures))
        note = f"guessing the mean image has {attack.psnr_baseline or 0.0:.1f} dB"
        about = {"adversary": who(finding.adversary), "attack": finding.attack, "note": note}
        return Examples(**about, columns=["PSNR"], rows=rows)

    def _labels(self, out: Path, finding: Finding) -> Examples | None:
        arrays = _arrays(out / finding.evidence)
        if "labels" not in arrays or "labels_true" not in arrays:
            return None
        pairs = list(zip(self.data.ids, arrays["labels_true"], arrays["labels"], strict=True))[:SHOWN]
        rows = [
            Example(name=str(name), real=[self._class(real)], found=[self._class(found)]) for name, real, found in pairs
        ]
        named = load_summary(out / finding.evidence).attack.labels_named is not False
        note = "" if named else "which class is called what was taken from the truth"
        about = {"adversary": who(finding.adversary), "attack": finding.attack, "note": note}
        return Examples(**about, columns=[self.data.label], rows=rows)

    def _class(self, label: int) -> str:
        if label < 0:
            return "–"
        return self.data.class_names[label] if self.data.class_names else str(label)

    def _columns(self, out: Path, finding: Finding) -> list[ColumnFacts]:
        arrays, summary = _arrays(out / finding.evidence), load_summary(out / finding.evidence)
        errors = self._errors(arrays)
        facts = []
        for column in summary.attack.columns:
            holder = "all workers" if column.worker is None else f"worker {column.worker}"
            right, guess = column.best.right or 0.0, column.best.guess or 0.0
            error = errors.get(str(column.name))
            facts.append(ColumnFacts(name=str(column.name), holder=holder, right=right, guess=guess, error=error))
        return facts

    def _errors(self, arrays: dict[str, np.ndarray]) -> dict[str, float]:
        """Return of each column of numbers how far half of its values are off at most, in its own unit."""
        if "x" not in arrays or "x_true" not in arrays or not self.data.columns:
            return {}
        found, errors, first = np.abs(arrays["x"] - arrays["x_true"]), {}, 0
        for column in self.data.columns:
            if column.kind == "number":
                errors[column.name] = float(np.median(found[:, first])) * column.deviation
            first += column.width
        return errors


def _exactly(value: Any) -> str:
    """Write a value with six digits, so that an amount is seen to the cent."""
    return f"{value:.6g}" if isinstance(value, float) and np.isfinite(value) else value_words(value)


def _worst(attempts: Sequence[Attempt], what: str) -> list[Finding]:
    """Return for each adversary the worst finding of a kind that is more than a guess, of equals the first."""
    worst: dict[str, Finding] = {}
    for finding in (one for attempt in attempts for one in attempt.findings):
        name = who(finding.adversary)
        known = worst.get(name)
        if finding.what == what and finding.state != "guess" and (known is None or is_worse(finding, known)):
            worst[name] = finding
    return sorted(worst.values(), key=lambda one: -one.beyond)


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    try:
        return read_archive(folder / "recovered.npz")
    except (ArchiveError, OSError):
        return {}
