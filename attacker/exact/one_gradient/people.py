"""The samples found so far, with their data: recognised in other rounds by what those rounds' network makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacker.exact.choice import Choice
from attacker.exact.one_gradient.batch import Batch
from attacker.exact.steps12.subspaces import inputs_side
from vfl.maths.factors import Factors
from vfl.models.layers import representation
from vfl.models.whole import WholeModel

SAME = 1e-2
"""Relative distance up to which an h is that of known data: rounding leaves 1e-5, other samples are beyond 0.1."""
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
    misfits: Tensor
    """(people, workers): the share of v that the known network cannot have sent back; NaN where unknown."""
    labels: Tensor
    """(people,), -1 where unknown."""
    born: Tensor
    """(people,): the round that showed them first."""
    acceptable: float
    """The residual up to which a slice is recognised."""

    def __len__(self) -> int:
        return len(self.labels)

    def joined(self, more: "People") -> "People":
        """Return both."""
        return replace(
            self,
            x=_both(self.x, more.x),
            h=_both(self.h, more.h),
            residual=torch.cat([self.residual, more.residual]),
            misfits=torch.cat([self.misfits, more.misfits]),
            labels=torch.cat([self.labels, more.labels]),
            born=torch.cat([self.born, more.born]),
        )

    def take(self, rows: Tensor) -> "People":
        """Return some of them, in this order."""
        return replace(
            self,
            x=tuple(part[rows] for part in self.x),
            h=tuple(part[rows] for part in self.h),
            residual=self.residual[rows],
            misfits=self.misfits[rows],
            labels=self.labels[rows],
            born=self.born[rows],
        )

    def better(self, rows: Tensor, again: "People") -> None:
        """Take over what `again`, the people of these rows met again, shows better."""
        for worker in range(len(self.x)):
            won = ~(again.residual[:, worker] >= self.residual[rows, worker]) & again.residual[:, worker].isfinite()
            for mine, new in ((self.x, again.x), (self.h, again.h)):
                mine[worker][rows[won]] = new[worker][won]
            for values, others in ((self.residual, again.residual), (self.misfits, again.misfits)):
                values[rows[won], worker] = others[won, worker]
        unknown = self.labels[rows] < 0
        self.labels[rows[unknown]] = again.labels[unknown]

    @property
    def sure(self) -> Tensor:
        """Tell which slices are good enough to be recognised by."""
        return self.residual <= self.acceptable

    def representations(self, model: WholeModel, choice: Choice, worker: int, rows: Tensor) -> Tensor:
        """Return what some people's slices are to a worker's layer with a round's parameters."""
        bottom, layer = model.bottoms[worker], choice.layers[worker]
        some = self.x[worker][rows]
        with torch.no_grad():
            parts = [representation(bottom, layer.name, part.float()) for part in some.split(CHUNK)]
        return torch.cat(parts).double()

    def distinct(self) -> Tensor:
        """Return the first row of each person: rows whose sure slices coincide are one."""
        away = torch.full((len(self), len(self)), -1.0)
        for worker, x in enumerate(self.x):
            rows = self.sure[:, worker].nonzero()[:, 0]
            flat = x[rows].flatten(1).float()
            apart = torch.cdist(flat, flat) / flat.norm(dim=1, keepdim=True).clamp_min(1e-12)
            place = rows[:, None], rows
            away[place] = torch.maximum(away[place], apart)
        alike = (away >= 0) & (away < SAME)
        alike.fill_diagonal_(True)
        first = alike.to(torch.uint8).argmax(dim=1)
        return (first == torch.arange(len(self))).nonzero()[:, 0]

    def members(self, factors: Sequence[Factors], model: WholeModel, choice: Choice) -> Tensor:
        """Tell who takes part in a round: whose sure slices lie in the space of the gradient.

        Only workers count whose gradient shows as many samples as any: others' hide some behind others.
        """
        most = max(own.rank for own in factors)
        inside = self.sure[:, [own.rank == most for own in factors]].any(dim=1)
        for worker, own in enumerate(factors):
            rows = (inside & self.sure[:, worker]).nonzero()[:, 0]
            if own.rank < most or len(rows) == 0:
                continue
            h = self.representations(model, choice, worker, rows)
            away, _ = inputs_side(own).distance((h / h.norm(dim=1, keepdim=True)).T)
            inside[rows[away > SAME]] = False
        return inside

    def recognised(self, batch: Batch, model: WholeModel, choice: Choice, among: Tensor) -> Tensor:
        """Return for each row of a batch which of some people it is, -1 for none: all workers that can tell agree."""
        people = among.nonzero()[:, 0]
        rows = len(batch.labels)
        found = torch.full((rows,), -1)
        if len(people) == 0:
            return found
        away = torch.full((rows, len(people)), -1.0, dtype=torch.float64)
        for worker, h in enumerate(batch.h):
            known = h.isfinite().all(dim=1)
            sure = self.sure[people, worker]
            if not bool(known.any()) or not bool(sure.any()):
                continue
            made = self.representations(model, choice, worker, people[sure])
            apart = torch.cdist(h[known], made) / h[known].norm(dim=1, keepdim=True)
            place = known.nonzero(), sure.nonzero()[:, 0]
            away[place] = torch.maximum(away[place], apart)
        away[away < 0] = torch.inf
        nearest = away.min(dim=1)
        close = nearest.values < SAME
        found[close] = people[nearest.indices[close]]
        return found


def _both(one: Sequence[Tensor], other: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(pair) for pair in zip(one, other, strict=True))
