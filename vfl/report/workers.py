"""Who leaked what: a line for each worker, with the columns that there is something to say about."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from vfl.folder.scores import PartyScore
from vfl.maths.metrics import PSNR_CAP, exact_rows
from vfl.report.facts import NOTHING
from vfl.report.folder import RunFolder

MOST_NAMES = 6


@dataclass(frozen=True)
class WorkerLine:
    """What is known of one worker."""

    worker: int
    texts: tuple[str, ...]
    share: float | None
    """Its score as a share of the best there is, if it has one."""


@dataclass(frozen=True)
class WorkerTable:
    """What is known of all workers, and what it is called."""

    titles: tuple[str, ...]
    lines: tuple[WorkerLine, ...]


def worker_table(run: RunFolder) -> WorkerTable:
    """Return what leaked of each worker's part, and what else is known of it."""
    count = run.summary.config.federation.holders  # a label holder without features has no part to show
    title, shares, scores = _samples_scores(run) if run.runs else _part_scores(run, count)
    columns = {
        title: scores,
        "holds": _holds(run, count),
        "certificate, median": _certificates(run, count),
        "rounds that look altered": _each(count, _altered(run)),
        "withheld": _each(count, _withheld(run)),
    }
    shown = {title: texts for title, texts in columns.items() if any(text != NOTHING for text in texts)}
    lines = [WorkerLine(n, tuple(texts[n] for texts in shown.values()), shares[n]) for n in range(count)]
    return WorkerTable(tuple(shown), tuple(lines))


def _each(count: int, text: Callable[[int], str | None]) -> list[str]:
    return [text(worker) or NOTHING for worker in range(count)]


def _part_scores(run: RunFolder, count: int) -> tuple[str, list[float | None], list[str]]:
    """Return how well each worker's part of the samples was recovered, beside a guess."""
    parties = {party.worker: party for party in run.summary.attack.parties}
    if run.kind == "table":
        values = [parties[worker].values if worker in parties else None for worker in range(count)]
        rights = [one.right if one else None for one in values]
        return "values right", rights, [one.in_words if one else NOTHING for one in values]
    found = [parties.get(worker, PartyScore(worker=worker)) for worker in range(count)]
    scores = [None if party.psnr is None else max(0.0, party.psnr) / PSNR_CAP for party in found]
    return "PSNR and SSIM of its part", scores, [party.in_words or NOTHING for party in found]


def _samples_scores(run: RunFolder) -> tuple[str, list[float | None], list[str]]:
    """Return how well each worker's own samples were recovered."""
    if run.psnr is not None:
        means = [float(run.psnr[own].mean()) for own in run.runs]
        return "PSNR of its images", [max(0.0, mean) / PSNR_CAP for mean in means], [f"{mean:.1f} dB" for mean in means]
    if run.x is None or run.truth is None:
        return "", [None] * len(run.runs), [NOTHING] * len(run.runs)
    right = exact_rows(torch.tensor(run.x), torch.tensor(run.truth)).float()
    rows = [float(right[own].mean()) for own in run.runs]
    return "rows rebuilt", [*rows], [f"{share:.0%}" for share in rows]


def _holds(run: RunFolder, count: int) -> list[str]:
    if run.runs:
        return [NOTHING if run.x is None else f"samples {own.start} to {own.stop - 1}" for own in run.runs]
    if run.boxes:
        edges = [(*box.start[-2:], *box.stop[-2:]) for box in run.boxes]
        return [f"rows {top} to {end - 1}, columns {left} to {right - 1}" for top, left, end, right in edges]
    columns = run.summary.attack.columns

    def names(worker: int) -> str:
        own = [str(column.name) for column in columns if column.worker == worker]
        return ", ".join(own[:MOST_NAMES]) + (f" and {len(own) - MOST_NAMES} more" if len(own) > MOST_NAMES else "")

    return _each(count, names)


def _certificates(run: RunFolder, count: int) -> list[str]:
    found = run.arrays.get("certificates")
    if found is None or found.ndim != 2 or (found.shape[1] != count and not run.runs):
        return [NOTHING] * count
    each = [found[own, 0] for own in run.runs] or found.T
    known = [own[np.isfinite(own)] for own in each]
    return [f"{np.median(own):.1e}" if len(own) else NOTHING for own in known]


def _altered(run: RunFolder) -> Callable[[int], str | None]:
    shares = run.summary.attack.altered or []
    known = {worker: share for worker, share in enumerate(shares) if share is not None}
    return lambda worker: f"{known[worker]:.0%}" if worker in known else None


def _withheld(run: RunFolder) -> Callable[[int], str | None]:
    rounds = run.summary.withheld
    return lambda worker: f"from round {rounds[str(worker)]}" if str(worker) in rounds else None
