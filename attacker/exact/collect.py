"""What is kept of the rounds: per worker low-rank factors or sketches, and only as many rounds as tell more."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attacker.exact.choice import Choice
from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.completion import kept
from attacker.exact.steps12.factors import Factors, factorize
from attacker.exact.steps12.subspaces import cell_subspaces, inputs_side, outputs_side
from attacker.least_squares import sketch_of
from vfl.errors import UserError
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
        shares = [f.noise / float(f.sigma[0]) for own in self.factors for f in own if f.rank]
        return bool(shares) and sorted(shares)[len(shares) // 2] > NOISY

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

    def relink(self, first_epoch: int) -> None:
        """Take the rounds' indices, of two epochs, for made-up ones, and make up others that the gradients bear out.

        Workers may map the coordinator's indices to rows by a secret of their own, which by itself protects nothing:
        two batches meet in the span of the samples that they share, whatever these are called, and the dimension of
        that meeting is their number. So for all pairs of batches of two epochs the counts are known, and names are
        made up that fit them. Who is who stays unknown.
        """
        sizes = torch.tensor([len(batch) for batch in self.batches])
        misfits = []
        for own in self.factors:
            counts = _shared(own, first_epoch)
            rows = (counts.sum(1) - sizes[:first_epoch]).abs().sum()
            columns = (counts.sum(0) - sizes[first_epoch:]).abs().sum()
            misfits.append(int(torch.maximum(rows, columns)))
            if misfits[-1] == 0:  # the counts make up whole batches
                first, second = counts.nonzero().repeat_interleave(counts[counts > 0], 0).T
                names = [first == t for t in range(first_epoch)] + [second == t for t in range(counts.shape[1])]
                self.batches = [own.nonzero()[:, 0] for own in names]
                return
        raise UserError(
            f"attack exact with relink: at no worker do the gradients say which batches share samples (the counts miss "
            f"{min(misfits)} of {int(sizes[:first_epoch].sum())} samples at best): samples that leak nothing or look "
            f"alike, or altered gradients"
        )

    def _wanted(self, batch: Tensor) -> bool:
        """Tell whether a round says something new of any sample; with that, memory grows with the samples."""
        if self._choice.method != "subspaces":
            return len(self.batches) < 2 * len(self._drawn)
        if self._choice.single and bool((self._drawn[batch] > 0).any()):
            return False
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


def _shared(own: Sequence[Factors], first_epoch: int) -> Tensor:
    """Return how many samples each batch of the first epoch shares with each of the second."""
    roomier = inputs_side if len(own[0].left) >= len(own[0].right) else outputs_side
    pairs = [Cell((), (a, b)) for a in range(first_epoch) for b in range(first_epoch, len(own))]
    meetings = cell_subspaces(pairs, [roomier(one) for one in own])
    return torch.tensor([meeting.shape[1] for meeting in meetings]).reshape(first_epoch, -1)
