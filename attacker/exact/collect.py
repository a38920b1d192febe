"""What is kept of the rounds: per worker low-rank factors or sketches, and only as many rounds as tell more."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attacker.exact.choice import Choice
from attacker.exact.steps12.completion import kept
from attacker.least_squares import sketch_of
from vfl.maths.factors import Factors, factorize
from vfl.observation import Observation, Setting

ENOUGH = 5
"""Batches of each sample that are kept: more would sharpen nothing once they part all samples."""
NOISY = 1e-4
"""A gradient whose singular values beyond the batch exceed this share of the largest was not merely rounded."""


class Rounds:
    """The rounds so far, reduced."""

    def __init__(self, setting: Setting, choice: Choice) -> None:
        self._choice = choice
        self._drawn = torch.zeros(setting.samples, dtype=torch.long)
        self._cell = torch.zeros(setting.samples, dtype=torch.long)
        self._members = torch.zeros(setting.samples, dtype=torch.long)
        self._members[0], self._cells = setting.samples, 1
        """How many samples each cell has, and how many cells there are."""
        self.batches: list[Tensor] = []
        self.numbers: list[int] = []
        """The rounds that are kept."""
        self.factors: list[list[Factors]] = [[] for _ in choice.layers]
        self.sketches = [
            torch.eye(layer.outputs, dtype=torch.float64)
            if choice.method == "rank_one" and kept(layer) == layer.outputs
            else sketch_of(setting.seed, worker, layer.outputs)
            for worker, layer in enumerate(choice.layers)
        ]
        self.sketched: list[list[tuple[Tensor, Tensor]]] = [[] for _ in choice.layers]

    @property
    def noisy(self) -> bool:
        """Whether the typical gradient has more than rounding beyond its rank."""
        return noisy([f for own in self.factors for f in own])

    def hidden(self, lost: Tensor) -> Tensor:
        """Tell which lost slices (samples, workers) may be in what all their batches show beyond the found ones."""
        if self._choice.method != "subspaces":
            return torch.zeros_like(lost)  # least squares loses those whose gradients are zero
        hidden = lost.clone()
        for worker, own in enumerate(self.factors):
            for batch, factors in zip(self.batches, own, strict=True):
                if factors.rank <= int((~lost[batch, worker]).sum()):
                    hidden[batch, worker] = False
        return hidden

    @property
    def twice(self) -> bool:
        """Whether every sample was drawn at least twice."""
        return bool((self._drawn >= 2).all())

    @property
    def parted(self) -> bool:
        """Whether no two samples were together in all their batches."""
        return self._cells == len(self._drawn)

    def add(self, observation: Observation) -> None:
        """Keep what a round adds."""
        batch = observation.indices
        if not self._wanted(batch):
            return
        self.batches.append(batch)
        self.numbers.append(observation.round)
        for worker, layer in enumerate(self._choice.layers):
            gradients = observation.gradients.bottoms[worker]
            weight, bias = gradients[f"{layer.name}.weight"], gradients.get(f"{layer.name}.bias")
            if self._choice.method == "subspaces":
                self.factors[worker].append(factorize(weight, bias, len(batch)))
            else:
                assert bias is not None  # least squares begins with it
                product = self.sketches[worker] @ weight.detach().cpu().to(torch.float64)
                self.sketched[worker].append((bias.detach().cpu().to(torch.float64), product))

    def _wanted(self, batch: Tensor) -> bool:
        """Tell whether a round says something new of any sample; with that, memory grows with the samples."""
        if self._choice.method != "subspaces":
            return len(self.batches) < 2 * len(self._drawn)
        # Samples have been together in all their batches as long as they carry the same cell number; a cell of which
        # only a part is in the batch comes apart. No more than the batch is looked at, however many samples there are.
        cells, place, counts = self._cell[batch].unique(return_inverse=True, return_counts=True)
        torn = counts < self._members[cells]
        new = bool(torn.any()) or bool((self._drawn[batch] < ENOUGH).any())
        if new:
            self._drawn[batch] += 1
            numbers = torch.where(torn, self._cells + torn.cumsum(0) - 1, cells)
            self._members[cells[torn]] -= counts[torn]
            self._members[numbers[torn]] = counts[torn]
            self._cells += int(torn.sum())
            self._cell[batch] = numbers[place]
        return new


def noisy(factors: Sequence[Factors]) -> bool:
    """Tell whether the typical of some gradients has more than rounding beyond its rank."""
    shares = sorted(f.noise / float(f.sigma[0]) for f in factors if f.rank)
    return bool(shares) and shares[len(shares) // 2] > NOISY
