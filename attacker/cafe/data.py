"""Step III: the gradient of equation (9) for a batch of guessed data and labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.cafe.steps import gradient_distance, representation_distance, truncated
from attacker.matching.engine import Engine
from vfl.models import build_bottom
from vfl.models.layers import representation
from vfl.observation import ModelTensors, Observation, Setting


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
        self._bottoms: list[nn.Module] = []
        self._parameters: tuple[Tensor, ...] = ()
        self._of: ModelTensors | None = None

    @property
    def device(self) -> torch.device:
        """Return where the computing is done."""
        return self._engine.device

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
            terms.append(weights.alpha * gradient_distance(guess.gradients, self._engine.flat(observation.gradients)))
            found = guess.representations
        elif weights.gamma:
            found = [
                representation(bottom, layer, part)
                for bottom, layer, part in zip(self._bottoms, self._layers, x, strict=True)
            ]
        if weights.gamma:
            terms.append(weights.gamma * representation_distance(found, wanted))
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
            self._bottoms = [
                build_bottom(self._setting.model, box.shape, self._setting.seed, worker)
                .to(self.device)
                .requires_grad_(False)
                for worker, box in enumerate(self._setting.boxes)
            ]
        for bottom, tensors in zip(self._bottoms, parameters.bottoms, strict=True):
            bottom.load_state_dict(dict(tensors), strict=False)
