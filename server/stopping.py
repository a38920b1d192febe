"""When training has gone on for long enough: the test loss no longer becomes smaller."""

import math
from collections.abc import Iterable

from vfl.config import EarlyStop, RunConfig
from vfl.folder.results import Record


def no_longer_improves(losses: Iterable[float], rule: EarlyStop) -> bool:
    """Tell whether the last `patience` of these test losses did not improve on what was best before them."""
    best, since = math.inf, 0
    for loss in losses:
        since += 1
        if loss < best - rule.min_delta:
            best, since = loss, 0
    return since >= rule.patience


def has_converged(config: RunConfig, record: Record) -> bool:
    """Return whether a run may end with the evaluations that it has."""
    # What was evaluated before the first step says nothing of training.
    losses = [one.loss for one in record.evaluations if any(record.rates[: one.round])]
    return config.training.early_stop is not None and no_longer_improves(losses, config.training.early_stop)
