"""A run's curves, thinned: its PSNR, training loss and test accuracy over the rounds, as they are kept with a row."""

import math
from typing import Any

from vfl.folder.summary import Summary

Curves = dict[str, list[tuple[int, float]]]
"""(round, value) by the name of the number that the curve ends at."""
POINTS = 200
"""Of a curve that has a value for every round."""


def curves_of(summary: Summary) -> Curves:
    """Return those that a run has."""
    steps = summary.attack.over_rounds or []
    found: Curves = {
        "attack.psnr_mean": [(step.round, step.psnr_mean) for step in steps if step.psnr_mean is not None],
        "attack.mse_mean": [(step.round, step.mse_mean) for step in steps if step.mse_mean is not None],
        "train.loss_end": _smooth(summary.train.losses),
        "train.test_accuracy": [(one.round, one.accuracy) for one in summary.train.evaluations],
    }
    finite = {key: [(at, value) for at, value in curve if math.isfinite(value)] for key, curve in found.items()}
    return {key: curve for key, curve in finite.items() if len(curve) > 1}


def value_at(curves: Curves, key: str, number: int) -> float | None:
    """Return what a curve has after a round; None where it has no point."""
    return dict(curves.get(key, [])).get(number)


def read_curves(tree: Any) -> Curves:
    """Return curves that were kept as JSON."""
    if not isinstance(tree, dict):
        return {}
    return {key: [(int(at), float(value)) for at, value in points] for key, points in tree.items()}


def _smooth(losses: list[float]) -> list[tuple[int, float]]:
    """Return the mean of the twentieth of the rounds before each point; at 0 the first round's, before any step."""
    if not losses:
        return []
    every = max(1, len(losses) // POINTS)
    curve = [(0, losses[0])]
    for end in range(every, len(losses) + 1, every):
        last = losses[end - max(1, math.ceil(end / 20)) : end]
        curve.append((end, sum(last) / len(last)))
    return curve
