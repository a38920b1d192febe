"""When each of the three steps runs: one after the other (Algorithm 3) or all in one loop (Algorithm 4)."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

Loop = Literal["nested", "single"]

SHARES = {"nested": (1.0, 1.0, 1.0), "single": (1.0, 2.0, 7.0)}
"""Each step T iterations as in Algorithm 3; in the single loop the thresholds may never be met at another scale."""


class Phases:
    """Which steps an iteration takes."""

    def __init__(
        self, loop: Loop, rounds: int, shares: tuple[float, float, float], thresholds: tuple[float | None, float | None]
    ) -> None:
        self._nested, self._rounds, self._thresholds = loop == "nested", max(rounds, 1), thresholds
        first, second = shares[0] / sum(shares), (shares[0] + shares[1]) / sum(shares)
        self._latest = (0, round(first * self._rounds), round(second * self._rounds))
        """The iterations at which the steps begin; in the single loop, at which they begin at the latest."""
        self._began: list[int | None] = [0, None, None]
        self._done = 0

    @property
    def counts(self) -> list[int]:
        """Return what another `Phases` goes on from: iterations so far, and when each step began, -1 if it has not."""
        return [self._done, *(-1 if began is None else began for began in self._began)]

    def go_on(self, counts: list[int]) -> None:
        """Go on from the counts of another."""
        self._done = counts[0]
        self._began = [None if began < 0 else began for began in counts[1:]]

    def iterate(self, *steps: Callable[[float], Tensor]) -> None:
        """Make one iteration of those steps that are due; each gets the share of its rounds and returns its objective.

        In the single loop a step is switched on for good as soon as the objective of the one before fell below its
        threshold, and the steps before it go on. An objective is looked at, for which a GPU must be waited for, only
        where that is still to be decided.
        """
        for number, step in enumerate(steps):
            if not self._due(number):
                break
            if self._nested and number + 1 < len(steps) and self._due(number + 1):
                continue
            objective = step(self._share(number))
            if not self._nested and number < 2 and not self._due(number + 1):
                threshold = self._thresholds[number]
                if threshold is None or bool(objective < threshold):
                    self._began[number + 1] = self._done
        self._done += 1

    def _due(self, number: int) -> bool:
        if self._began[number] is None and self._done >= self._latest[number]:
            self._began[number] = self._done
        return self._began[number] is not None

    def _share(self, number: int) -> float:
        """Return how much of its planned rounds a step has behind it."""
        began = self._began[number] or 0
        end = self._latest[number + 1] if self._nested and number < 2 else self._rounds
        return (self._done - began) / max(end - began, 1)
