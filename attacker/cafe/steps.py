"""The three steps: their objectives, equations (7), (8) and (9) of the paper, with gradients, and when each runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attacker.matching.engine import Engine
from vfl.maths.adam import RowAdam
from vfl.maths.variation import ACROSS, DOWN, differences
from vfl.models.layers import representation
from vfl.models.whole import first_model
from vfl.observation import ModelTensors, Observation, Setting

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


def squared_distance(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """Return the first term of equation (9) without alpha, over all parameters; over representations it is the last."""
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

    def iterate(self, *steps: Callable[[float], float]) -> None:
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


@dataclass(frozen=True)
class Weights:
    """The coefficients of equation (9)."""

    alpha: float
    beta: float
    gamma: float
    xi: float


@dataclass(frozen=True)
class Moved:
    """What a step does: the objective, and its gradient for each worker's slices and for the labels."""

    objective: float
    slices: tuple[Tensor, ...]
    labels: Tensor | None


class DataObjective:
    """Equation (9). Without its first term no second derivative is needed, and no layer after the first dense one."""

    def __init__(self, setting: Setting, layers: Sequence[str], weights: Weights) -> None:
        self._setting, self._layers, self._weights = setting, layers, weights
        self._engine = Engine(setting)
        self.device = self._engine.device
        self._bottoms: list[nn.Module] = []
        self._parameters: tuple[Tensor, ...] = ()
        self._of: ModelTensors | None = None

    def __call__(
        self, observation: Observation, slices: Sequence[Tensor], labels: Tensor, wanted: Sequence[Tensor]
    ) -> Moved:
        """Return the objective and gradients for a batch's slices, label scores and representations from step II."""
        self._follow(observation.parameters)
        x = [part.detach().requires_grad_() for part in slices]
        scores = labels.detach().requires_grad_()
        weights = self._weights
        terms: list[Tensor] = []
        found: Sequence[Tensor] = ()
        if weights.alpha:
            guess = self._engine.guess(self._parameters, x, scores.softmax(1))
            terms.append(weights.alpha * squared_distance(guess.gradients, self._engine.flat(observation.gradients)))
            found = guess.representations
        elif weights.gamma:
            found = list(map(representation, self._bottoms, self._layers, x))
        if weights.gamma:
            terms.append(weights.gamma * squared_distance(found, wanted))
        if weights.beta:
            terms.append(weights.beta * truncated(x, weights.xi))
        if not any(term.requires_grad for term in terms):
            return Moved(0.0, tuple(torch.zeros_like(part) for part in x), None)
        objective = torch.stack(terms).sum()
        inputs = [*x, scores] if weights.alpha else x
        gradients = torch.autograd.grad(objective, inputs, allow_unused=True)
        whole = [torch.zeros_like(of) if one is None else one for one, of in zip(gradients, inputs, strict=True)]
        return Moved(float(objective.detach()), tuple(whole[: len(x)]), whole[-1] if weights.alpha else None)

    def _follow(self, parameters: ModelTensors) -> None:
        """Take over the parameters in force, if they are not those of the round before."""
        if parameters is self._of:
            return
        self._of = parameters
        if self._weights.alpha:
            self._parameters = self._engine.flat(parameters)
            return
        if not self._bottoms:
            built = first_model(self._setting).bottoms
            self._bottoms = [bottom.to(self.device).requires_grad_(False) for bottom in built]
        for bottom, tensors in zip(self._bottoms, parameters.bottoms, strict=True):
            bottom.load_state_dict(dict(tensors), strict=False)


Name = Literal["sgd", "scaled_sgd", "adam"]


class RowSGD:
    """Plain gradient descent on the rows of a batch; all others stay as they are."""

    def step(self, values: Tensor, rows: Tensor, gradient: Tensor, lr: float) -> None:
        """Update values[rows] in place."""
        values.index_add_(0, rows, gradient, alpha=-lr)


def optimiser_for(name: Name, like: Tensor, betas: tuple[float, float], epsilon: float) -> RowAdam | RowSGD:
    """Build the optimiser of one variable."""
    return RowAdam(like, betas, epsilon) if name == "adam" else RowSGD()


def scaled(lr: float, curvature: float) -> float:
    """Return a learning rate that was given in units of the step that reaches a batch's minimum.

    `curvature` is the largest of the objective's second derivatives. A rate of 1 on step I is Kaczmarz's method, which
    solves one batch's equation at a time; every rate below 2 is stable, whatever the batch's size and the gradients'.
    """
    return lr / curvature if curvature > 0.0 else 0.0


def cosine_decay(lr: float, final: float, share: float) -> float:
    """Return the learning rate after this share of a step's rounds, falling to `final` of the first along a cosine."""
    return lr * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(max(share, 0.0), 1.0))))
