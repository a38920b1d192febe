"""Step III: equation (9), whose terms can be left out and replaced: the rows of the paper's Tables 2 and 4.

DLG has the first term alone; "Cosine" another first term and the total variation; SAPAG a third first term alone; "BN"
and "GC" the first term and, in place of the paper's regularisers, the batch norm's statistics or the distance from the
mean of several starts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attacker.matching import objectives
from attacker.matching.components import depths
from attacker.matching.engine import Engine, Guess
from attacker.matching.objectives import Targets
from attacker.matching.pooling import QuickPooling
from attacker.matching.regularisers import BatchNormStatistics, Situation
from vfl.device import moved
from vfl.maths.variation import ACROSS, DOWN, differences
from vfl.models.layers import representation
from vfl.models.whole import first_model
from vfl.observation import ModelTensors, Setting

Match = Literal["squared", "cosine", "gaussian"]


@dataclass(frozen=True)
class Terms:
    """What equation (9) is made of."""

    alpha: float
    beta: float
    gamma: float
    xi: float
    match: Match = "squared"
    width: float = 1.0
    """Of the Gaussian kernel, in units of each layer's own."""
    statistics: float = 0.0
    consistency: float = 0.0

    @property
    def second_order(self) -> bool:
        """Whether a term is about the gradients of guessed data."""
        return self.alpha > 0

    @property
    def none(self) -> bool:
        """Whether nothing is left."""
        return not any((self.alpha, self.beta, self.gamma, self.statistics, self.consistency))


@dataclass(frozen=True)
class Batch:
    """What step III has of a round, on the attack's device."""

    parameters: ModelTensors
    gradients: tuple[Tensor, ...]
    """In the order of `Engine.names`."""


@dataclass(frozen=True)
class Moved:
    """What a step does: the objective, and its gradient for each worker's slices and for the labels."""

    objective: Tensor
    slices: tuple[Tensor, ...]
    labels: Tensor | None


class DataObjective:
    """Equation (9). Without its first term no second derivative is needed, and no layer after the first dense one."""

    def __init__(self, setting: Setting, layers: Sequence[str], terms: Terms) -> None:
        self._setting, self._layers, self._terms = setting, layers, terms
        self.engine = Engine(setting)
        self.device = self.engine.device
        self._depths = depths(self.engine)
        self._statistics = BatchNormStatistics(self.engine.norms)
        self._bottoms: list[nn.Module] = []
        self._parameters: tuple[Tensor, ...] = ()
        self._of: ModelTensors | None = None

    def __call__(
        self,
        batch: Batch,
        slices: Sequence[Tensor],
        labels: Tensor,
        *,
        wanted: Sequence[Tensor],
        mean: Sequence[Tensor] = (),
    ) -> Moved:
        """Return the objective and gradients for a batch's slices and label scores.

        `wanted` are the representations from step II, `mean` the means over the starts of what is guessed.
        """
        self._follow(batch.parameters)
        x = [part.detach().requires_grad_() for part in slices]
        scores = labels.detach().requires_grad_()
        terms, found = self._terms, Found(())
        if terms.second_order or terms.statistics:
            guess = self.engine.guess(self._parameters, x, scores.softmax(1))
            found = Found(guess.representations, guess)
        elif terms.gamma:
            with QuickPooling():
                found = Found(list(map(representation, self._bottoms, self._layers, x)))
        objective = torch.stack([*self._weighted(batch, x, scores, found=found, wanted=wanted, mean=mean)]).sum()
        inputs = [*x, scores] if terms.second_order else x
        if not objective.requires_grad:
            return Moved(objective, tuple(torch.zeros_like(part) for part in x), None)
        gradients = torch.autograd.grad(objective, inputs, allow_unused=True)
        whole = [torch.zeros_like(of) if one is None else one for one, of in zip(gradients, inputs, strict=True)]
        return Moved(objective.detach(), tuple(whole[: len(x)]), whole[-1] if terms.second_order else None)

    def _weighted(
        self,
        batch: Batch,
        x: Sequence[Tensor],
        scores: Tensor,
        *,
        found: "Found",
        wanted: Sequence[Tensor],
        mean: Sequence[Tensor],
    ) -> list[Tensor]:
        terms, sum_up = self._terms, []
        if terms.alpha and found.guess is not None:
            sum_up.append(terms.alpha * self._distance(found.guess, batch.gradients))
        if terms.beta:
            sum_up.append(terms.beta * truncated(x, terms.xi))
        if terms.gamma:
            sum_up.append(terms.gamma * squared_distance(found.representations, wanted))
        if terms.statistics and found.guess is not None:
            situation = Situation(x[0], scores, found.guess, 1)
            sum_up.append(terms.statistics * self._statistics(situation)[0])
        if terms.consistency:
            sum_up.append(terms.consistency * squared_distance(x, mean) / len(scores))
        return sum_up

    def _distance(self, guess: Guess, uploaded: Sequence[Tensor]) -> Tensor:
        """Return the first term without alpha, over all parameters of all parties."""
        found = [gradient.reshape(1, -1) for gradient in guess.gradients]
        seen = [gradient.reshape(1, -1) for gradient in uploaded]
        if self._terms.match == "squared":
            return objectives.squared_distances(found, seen).sum()
        measure = objectives.cosine if self._terms.match == "cosine" else objectives.GaussianKernel(self._terms.width)
        return measure(found, Targets.of(seen, self._depths))[0]

    def _follow(self, parameters: ModelTensors) -> None:
        """Take over the parameters in force, if they are not those of the round before."""
        if parameters is self._of:
            return
        self._of = parameters
        if self._terms.second_order or self._terms.statistics:
            self._parameters = self.engine.flat(parameters)
            return
        if not self._bottoms:
            built = first_model(self._setting).bottoms
            self._bottoms = [bottom.to(self.device).requires_grad_(False) for bottom in built]
        for bottom, tensors in zip(self._bottoms, parameters.bottoms, strict=True):
            there = {name: moved(tensor, self.device) for name, tensor in tensors.items()}
            bottom.load_state_dict(there, strict=False)


@dataclass(frozen=True)
class Found:
    """What the models make of guessed data."""

    representations: Sequence[Tensor]
    guess: Guess | None = None


def squared_distance(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """Return the summed squared distance of tensors: over representations it is the last term without gamma."""
    return torch.stack([(a - b).square().sum() for a, b in zip(found, wanted, strict=True)]).sum()


def total_variation(x: Tensor) -> Tensor:
    """Return the mean over the batch of each image's summed absolute differences between neighbours; 0 for tables."""
    if x.dim() < 3:
        return x.sum() * 0.0
    return (differences(x, DOWN).sum() + differences(x, ACROSS).sum()) / len(x)


def truncated(slices: Sequence[Tensor], threshold: float) -> Tensor:
    """Return the total variation of all workers' slices, or 0 where its mean over the workers is below the threshold.

    As in the paper's public code: the threshold is about one slice, the penalty is the sum over the workers. It is
    decided on the device, as to look at it would mean to wait for a GPU.
    """
    total = torch.stack([total_variation(x) for x in slices]).sum()
    return torch.where(total.detach() / len(slices) > threshold, total, 0.0 * total.detach())
