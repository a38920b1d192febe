"""Which of the three steps an iteration takes: one after the other (Algorithm 3) or all in one loop (Algorithm 4)."""

from collections.abc import Callable
from typing import Literal

Loop = Literal["nested", "single"]


class Phases:
    """Follows the iterations, and says when each step runs and how far through its rounds it is."""

    def __init__(
        self,
        loop: Loop,
        rounds: int,
        shares: tuple[float, float, float],
        thresholds: tuple[float | None, float | None],
    ) -> None:
        self._nested, self._rounds, self._thresholds = loop == "nested", max(rounds, 1), thresholds
        first, second = shares[0] / sum(shares), (shares[0] + shares[1]) / sum(shares)
        self._latest = (0, round(first * self._rounds), round(second * self._rounds))
        """The iterations at which the steps begin; in the single loop, at which they begin at the latest."""
        self._began: list[int | None] = [0, None, None]
        self._done = 0

    def iterate(self, steps: tuple[Callable[[float], float], ...]) -> None:
        """Make one iteration of those steps that are due; each gets the share of its rounds and returns its objective.

        In the single loop a step is switched on for good as soon as the objective of the one before fell below its
        threshold, and the steps before it go on.
        """
        for number, step in enumerate(steps):
            if not self._due(number):
                break
            if self._nested and number + 1 < len(steps) and self._due(number + 1):
                continue
            objective = step(self._share(number))
            if not self._nested and number < 2:
                threshold = self._thresholds[number]
                if self._began[number + 1] is None and (threshold is None or objective < threshold):
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
