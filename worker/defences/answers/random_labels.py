"""Randomised labels: the label holder learns from labels some of which are drawn at random, and answers accordingly."""

import math
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from vfl.config.places import Place
from vfl.errors import UserError
from worker.defences import Defence, Swapped, defences
from worker.keys import Draws


@defences.register("random_labels")
class RandomLabels(Defence):
    """Randomised response (Warner 1965; as label differential privacy Ghazi et al. 2021): each label is kept or drawn.

    A label stays with probability e^epsilon / (e^epsilon + classes - 1), and is each of the others alike often. It is
    drawn once for the whole run, so that however many answers a worker sees, epsilon holds for each label.
    """

    places: ClassVar[frozenset[Place]] = frozenset({"answers"})
    epsilon: float = Field(1.0, gt=0, le=50, description="what all answers together may tell of one label, at the most")

    def check(self, classes: int) -> None:
        """Refuse numbers, which are no classes."""
        if classes < 2:
            raise UserError("defence.answers: random_labels is for classes, and here a number is predicted")

    def labels(self, labels: Tensor, classes: int, draws: Draws) -> Tensor:
        """Return the labels that are learned."""
        kept = math.exp(self.epsilon) / (math.exp(self.epsilon) + classes - 1)
        stays = draws.uniform((len(labels),)).to(labels.device) < kept
        shift = 1 + (draws.uniform((len(labels),)) * (classes - 1)).long().clamp(max=classes - 2)
        return torch.where(stays, labels, (labels + shift.to(labels.device)) % classes)

    def exchange(self, tensor: Tensor, swapped: Swapped) -> Tensor:  # noqa: ARG002
        """Return the answers as they are: what is in them was learned from the drawn labels."""
        return tensor

    def report(self) -> dict[str, Any]:
        """Return what is promised of each label."""
        return {"epsilon of a label": self.epsilon}
