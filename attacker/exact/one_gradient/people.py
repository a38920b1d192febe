"""The samples found so far, with their data: what they are to a round's network, and which of them are one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacker.exact.choice import Choice
from vfl.maths.loss import is_known
from vfl.models.layers import representation
from vfl.models.whole import WholeModel
from vfl.observation import Setting

SAME = 1e-2
"""Relative distance up to which an h is that of known data: rounding leaves 1e-3 at most, others are beyond 0.02."""
EXACT = 1e-4
"""The residual up to which a slice's h stands for the sample's own in other rounds."""
CHUNK = 256


@dataclass(frozen=True)
class People:
    """Rows of all workers' slices."""

    x: tuple[Tensor, ...]
    """For each worker (people, *shape), NaN where unknown."""
    h: tuple[Tensor, ...]
    """For each worker (people, inputs): what they were made from, in the round that showed it best."""
    residual: Tensor
    """(people, workers): how far the slice's representation is from that, relative; NaN where unknown."""
    labels: Tensor
    """(people,), -1 or NaN where unknown."""
    acceptable: float
    """The residual up to which a slice is sure."""

    @classmethod
    def unknown(cls, count: int, setting: Setting, choice: Choice, acceptable: float) -> "People":
        """Return so many of whom nothing is known."""
        double = torch.float64
        return cls(
            x=tuple(torch.full((count, *box.shape), torch.nan) for box in setting.boxes),
            h=tuple(torch.full((count, layer.inputs), torch.nan, dtype=double) for layer in choice.layers),
            residual=torch.full((count, setting.workers), torch.nan),
            labels=setting.loss.unknown(count),
            acceptable=acceptable,
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sure(self) -> Tensor:
        """Tell which slices (people, workers) explain what they were made from."""
        return self.residual <= self.acceptable

    @property
    def exact(self) -> Tensor:
        """Tell which slices (people, workers) are good enough to compute with."""
        return self.residual <= min(EXACT, self.acceptable)

    def joined(self, more: "People") -> "People":
        """Return both."""
        return self._each(lambda mine, others: torch.cat([mine, others]), more)

    def take(self, rows: Tensor) -> "People":
        """Return some of them, in this order."""
        return self._each(lambda mine, _: mine[rows], self)

    def _each(self, how: Callable[[Tensor, Tensor], Tensor], other: "People") -> "People":
        return replace(
            self,
            x=tuple(map(how, self.x, other.x)),
            h=tuple(map(how, self.h, other.h)),
            residual=how(self.residual, other.residual),
            labels=how(self.labels, other.labels),
        )

    def may_be_one(self, group: Sequence[int]) -> bool:
        """Tell whether no two of a group have different sure slices at a worker."""
        for worker, x in enumerate(self.x):
            rows = torch.tensor([row for row in group if self.sure[row, worker]], dtype=torch.long)
            if bool((_apart(x[rows]) >= SAME).any()):
                return False
        return True

    def merged(self, groups: Sequence[Sequence[int]]) -> tuple["People", Tensor]:
        """Make one of each group, which has the best of its slices; return who each of the people is then."""
        heads = torch.arange(len(self))
        for first, *others in groups:
            for other in others:
                heads[heads == heads[other]] = heads[first]
        for head in heads.unique().tolist():
            members = (heads == head).nonzero()[:, 0]
            if len(members) > 1:
                self._gather(int(head), members)
        left, place = heads.unique(return_inverse=True)
        return self.take(left), place

    def _gather(self, head: int, members: Tensor) -> None:
        """Give the head its members' best slices."""
        best = self.residual[members].nan_to_num(torch.inf).argmin(dim=0)
        for worker, at in enumerate(members[best].tolist()):
            for part in (self.x, self.h):
                part[worker][head] = part[worker][at].clone()
            self.residual[head, worker] = self.residual[at, worker].clone()
        known = self.labels[members][is_known(self.labels[members])]
        if len(known):
            self.labels[head] = known[0]

    def representations(self, model: WholeModel, choice: Choice, worker: int, rows: Tensor) -> Tensor:
        """Return what some people's slices are to a worker's layer with a round's parameters."""
        bottom, layer = model.bottoms[worker], choice.layers[worker]
        some = self.x[worker][rows]
        with torch.no_grad():
            parts = [representation(bottom, layer.name, part.float()) for part in some.split(CHUNK)]
        return torch.cat([torch.zeros(0, layer.inputs), *parts]).double()

    def distinctive(self) -> Tensor:
        """Tell which sure slices (people, workers) no one else has: others say nothing of who it is."""
        own = self.sure.clone()
        for worker, x in enumerate(self.x):
            rows = own[:, worker].nonzero()[:, 0]
            alike = (_apart(x[rows]) < SAME).fill_diagonal_(False)
            own[rows[alike.any(dim=1)], worker] = False
        return own

    def alike(self) -> Tensor:
        """Tell of which two people (people, people) the sure slices coincide."""
        away = torch.full((len(self), len(self)), -1.0)
        for worker, x in enumerate(self.x):
            rows = self.sure[:, worker].nonzero()[:, 0]
            place = rows[:, None], rows
            away[place] = torch.maximum(away[place], _apart(x[rows]))
        return ((away >= 0) & (away < SAME)).fill_diagonal_(False)


def _apart(x: Tensor) -> Tensor:
    """Return how far slices are from each other, relative."""
    flat = x.flatten(1).float()
    apart: Tensor = torch.cdist(flat, flat) / flat.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return apart
