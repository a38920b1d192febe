"""What is kept of rounds whose every gradient may give its whole batch away: gradients of one layer, and parameters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.exact.choice import Choice
from vfl.observation import ModelTensors, Observation, Setting

EPOCHS = 5
"""Rounds of each sample that are kept at most: one is enough, others part samples that look alike in it."""
MOST_BYTES = 1 << 30
"""What rounds beyond a sample's first may take in memory."""


@dataclass(frozen=True)
class Seen:
    """One round: at each worker the gradient of its layer's weight (outputs, inputs) and bias."""

    number: int
    batch: Tensor
    """The indices that the coordinator sent."""
    version: int
    gradients: tuple[tuple[Tensor, Tensor], ...]


class Kept:
    """The rounds so far, and the parameters in force in them."""

    def __init__(self, setting: Setting, choice: Choice) -> None:
        self._layers, self._bytes = choice.layers, 0
        self._epochs = 1 if setting.augmented or choice.jointly else EPOCHS
        self._drawn = torch.zeros(setting.samples, dtype=torch.long)
        self.rounds: list[Seen] = []
        self.versions: dict[int, ModelTensors] = {}

    def add(self, observation: Observation) -> None:
        """Keep a round that has a sample seen for the first time, and others as long as there is room."""
        batch = observation.indices
        least = int(self._drawn[batch].min()) if len(batch) else self._epochs
        if least >= self._epochs or (least > 0 and self._bytes > MOST_BYTES):
            return
        self._drawn[batch] += 1
        own = tuple(
            (gradients[f"{layer.name}.weight"].detach().cpu(), gradients[f"{layer.name}.bias"].detach().cpu())
            for layer, gradients in zip(self._layers, observation.gradients.bottoms, strict=True)
        )
        self.rounds.append(Seen(observation.round, batch, observation.version, own))
        self._bytes += sum(tensor.nbytes for pair in own for tensor in pair)
        if observation.version not in self.versions:
            self.versions[observation.version] = observation.parameters
            parameters = (*observation.parameters.bottoms, observation.parameters.top)
            self._bytes += sum(tensor.nbytes for part in parameters for tensor in part.values())
