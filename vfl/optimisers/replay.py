"""An optimiser's step taken a second time, by a party that checks it: plain formulas, for parameters by name.

Not `torch.optim` itself: every worker would import torch's compiler for it, which takes a second or two.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from vfl.optimisers.training import TrainingConfig

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""torch.optim.Adam's own, which a config cannot change."""


class Replay(Protocol):
    """An optimiser that takes the steps of another once more."""

    @property
    def remembers(self) -> bool:
        """Whether a step depends on those before it."""

    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], lr: float) -> dict[str, Tensor]:
        """Return the parameters after a step; those without a gradient stay as they are."""


@dataclass
class SgdReplay:
    """Gradient descent with momentum, as torch.optim.SGD has it."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    _buffers: dict[str, Tensor] = field(default_factory=dict)

    @property
    def remembers(self) -> bool:
        """Whether there is momentum."""
        return self.momentum > 0

    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], lr: float) -> dict[str, Tensor]:
        """Return the parameters after a step."""
        after = dict(parameters)
        for name, gradient in gradients.items():
            move = gradient.cpu()
            if self.weight_decay:
                move = move.add(parameters[name], alpha=self.weight_decay)
            if self.momentum:
                before = self._buffers.get(name)
                move = self._buffers[name] = move if before is None else before.mul(self.momentum).add_(move)
            after[name] = parameters[name].add(move, alpha=-lr)
        return after


@dataclass
class AdamReplay:
    """Adam, as torch.optim.Adam has it."""

    weight_decay: float = 0.0
    remembers = True
    _moments: dict[str, tuple[Tensor, Tensor, int]] = field(default_factory=dict)

    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], lr: float) -> dict[str, Tensor]:
        """Return the parameters after a step."""
        after = dict(parameters)
        for name, gradient in gradients.items():
            moved = gradient.cpu()
            if self.weight_decay:
                moved = moved.add(parameters[name], alpha=self.weight_decay)
            mean, square, count = self._moments.get(name, (torch.zeros_like(moved), torch.zeros_like(moved), 0))
            self._moments[name] = (mean, square, count + 1)
            mean.lerp_(moved, 1 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(moved, moved, value=1 - BETAS[1])
            first, second = (1 - beta ** (count + 1) for beta in BETAS)
            after[name] = parameters[name].addcdiv(
                mean, (square.sqrt() / math.sqrt(second)).add_(EPSILON), value=-lr / first
            )
        return after

    @staticmethod
    def farthest(count: int) -> float:
        """Return how far step number `count` can move a parameter, in learning rates, whatever the gradients were.

        By Cauchy and Schwarz: the mean of gradients g_i with weights a_i, against the root of their mean square with
        weights b_i, is at most the root of the sum of a_i^2 / b_i.
        """
        (one, two), ratio = BETAS, BETAS[0] ** 2 / BETAS[1]
        total = (1 - ratio**count) / (1 - ratio)
        return (1 - one) / (1 - one**count) * math.sqrt((1 - two**count) / (1 - two) * total)


def replay_of(training: TrainingConfig) -> Replay | None:
    """Return the replay of a config's optimiser; None of a plug-in's, whose steps may depend on anything."""
    options = training.model_extra or {}
    decay = float(options.get("weight_decay", 0.0))
    if training.optimizer == "sgd":
        return SgdReplay(float(options.get("momentum", 0.0)), decay)
    return AdamReplay(decay) if training.optimizer == "adam" else None
