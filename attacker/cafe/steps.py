"""The three steps: their objectives, equations (7), (8) and (9) of the paper, with gradients, and when each runs."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from vfl.maths.variation import ACROSS, DOWN, differences

Loop = Literal["nested", "single"]


def outputs_objective(v: Tensor, bias: Tensor) -> tuple[float, Tensor, float]:
    """Return F1 of equation (7) for one worker and batch, its gradient for the rows v, and its curvature.

    The batch's v_n add up to the bias's gradient, so all rows have the same gradient.
    """
    residual = v.sum(0) - bias
    return float(residual.square().sum()), (2 * residual).expand_as(v), 2.0 * len(v)


def inputs_objective(h: Tensor, v: Tensor, weight: Tensor, curved: bool) -> tuple[float, Tensor, float]:
    """Return F2 of equation (8) for one worker and batch, its gradient for the rows h, and, if asked, its curvature.

    The weight's gradient is stored as (outputs, inputs), so that it is the sum of v_n h_n^T.
    """
    residual = torch.addmm(weight, v.T, h, beta=-1)
    curvature = 2 * float(torch.linalg.eigvalsh((v @ v.T).double())[-1]) if curved else 0.0
    return float(residual.square().sum()), 2 * v @ residual, curvature


def gradient_distance(guessed: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
    """Return the first term of equation (9) without alpha: the squared distance over all parameters."""
    return torch.stack([(a - b).square().sum() for a, b in zip(guessed, observed, strict=True)]).sum()


def representation_distance(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """Return the last term of equation (9) without gamma: the squared distance, summed over the batch and workers."""
    return torch.stack([(a - b).square().sum() for a, b in zip(found, wanted, strict=True)]).sum()


def total_variation(x: Tensor) -> Tensor:
    """Return the mean over the batch of each image's summed absolute differences between neighbours; 0 for tables."""
    if x.dim() < 3:
        return x.sum() * 0.0
    return (differences(x, DOWN).sum() + differences(x, ACROSS).sum()) / len(x)


def truncated(slices: Sequence[Tensor], threshold: float) -> Tensor:
    """Return the total variation of all workers' slices, or 0 where its mean over the workers is below the threshold.

    As in the paper's public code: the threshold is about one slice, the penalty is the sum over the workers.
    """
    total = torch.stack([total_variation(x) for x in slices]).sum()
    return total if float(total.detach()) / len(slices) > threshold else total.detach() * 0.0


class Phases:
    """Which steps an iteration takes: one after the other (Algorithm 3) or all in one loop (Algorithm 4)."""

    def __init__(
        self, loop: Loop, rounds: int, shares: tuple[float, float, float], thresholds: tuple[float | None, float | None]
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
