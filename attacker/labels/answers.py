"""The answers that a worker has got, sample by sample: one row for each time that a sample was in a batch."""

import torch
from torch import Tensor

from attacker.interface import Setting
from attacker.passes import by_passes
from vfl.errors import UserError
from vfl.observation import WorkerObservation


class Answers:
    """Keeps what the label holder answered, round by round."""

    def __init__(self, setting: Setting) -> None:
        self.samples = setting.samples
        self._rounds: list[tuple[Tensor, Tensor]] = []

    def add(self, observation: WorkerObservation) -> None:
        """Take in one round."""
        self._rounds.append((observation.indices.clone(), observation.answer.double()))

    def __len__(self) -> int:
        return len(self._rounds)

    def by_round(self) -> list[tuple[Tensor, Tensor]]:
        """Return each round's samples and their answers, or say that there are none."""
        if not self._rounds:
            raise UserError("the worker has seen no answer yet: it takes one round at the least")
        return self._rounds

    def passes(self) -> list[Tensor]:
        """Return the answers by how often a sample has been seen: (samples, width) each, NaN where it was not."""
        return by_passes(self.by_round(), self.samples)


def directions(answers: Tensor) -> Tensor:
    """Return answers at length 1; those of no length, which tell nothing, as NaN."""
    lengths = answers.norm(dim=1, keepdim=True)
    return torch.where(lengths > 0, answers / lengths, torch.nan)
