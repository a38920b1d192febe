"""What an attack knows of data beyond gradients: images are smooth, labels fit, layers have known statistics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.matching.engine import Guess
from vfl.maths.variation import ACROSS, DOWN, differences
from vfl.models.batch_norm import FixedBatchNorm


@dataclass(frozen=True)
class Situation:
    """A guess as regularisers see it: n samples of P problems, n / P each, problem after problem."""

    x: Tensor
    """(n, *sample shape): the whole samples, slices put together."""
    targets: Tensor
    """(n, classes): the guessed labels' probabilities."""
    guess: Guess
    problems: int
    consensus: Tensor | None = None
    """(n, *sample shape): the mean over the seeds that are solved side by side."""

    def per_problem(self, values: Tensor) -> Tensor:
        """Return (P,): the mean over each problem's samples of (n, ...) values."""
        return values.reshape(self.problems, -1).mean(1)


Regulariser = Callable[[Situation], Tensor]
"""situation -> (P,)"""


def total_variation(situation: Situation) -> Tensor:
    """Mean absolute difference of neighbouring pixels of the whole image; nothing for tables."""
    x = situation.x
    if x.dim() != 4:
        return x.new_zeros(situation.problems)
    parts = [differences(x, dim, backwards=True) for dim in (DOWN, ACROSS) if x.shape[dim] > 1]
    return sum((situation.per_problem(part) for part in parts), x.new_zeros(situation.problems))


def label_fit(situation: Situation) -> Tensor:
    """Squared distance of the prediction from the label: Wei et al. 2020."""
    return situation.per_problem((situation.guess.logits.softmax(1) - situation.targets).square().sum(1))


@dataclass(frozen=True)
class BatchNormStatistics:
    """GradInversion's (Yin et al. 2021): distances of each layer's channel means and variances from the model's."""

    norms: Sequence[FixedBatchNorm]

    def __call__(self, situation: Situation) -> Tensor:
        """Return the sum over layers, each relative to the length of the model's own statistics."""
        total = situation.x.new_zeros(situation.problems)
        for norm, inputs in zip(self.norms, situation.guess.normed, strict=True):
            own = inputs.reshape(situation.problems, -1, *inputs.shape[1:])
            mean, variance = own.mean((1, 3, 4)), own.var((1, 3, 4), unbiased=False)
            total = total + _relative(mean, norm.mean) + _relative(variance, norm.variance)
        return total / max(len(self.norms), 1)


def group_consistency(situation: Situation) -> Tensor:
    """GradInversion's (Yin et al. 2021), without registration: mean squared distance from the seeds' mean image."""
    assert situation.consensus is not None
    return situation.per_problem((situation.x - situation.consensus).square())


def _relative(found: Tensor, expected: Tensor) -> Tensor:
    length: Tensor = expected.norm().clamp(min=1e-6)
    # the square root of zero has no derivative
    distance: Tensor = ((found - expected).square().sum(1) + torch.finfo(found.dtype).tiny).sqrt()
    return distance / length
