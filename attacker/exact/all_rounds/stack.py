"""The rounds, stacked, and what a sample adds to each: a first layer, a ReLU, and an affine rest down to the logits."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vfl.maths.loss import Loss


@dataclass(frozen=True)
class Stack:
    """Rounds (rounds, …), batches filled up to one length."""

    indices: Tensor
    """(rounds, batch)."""
    present: Tensor
    """(rounds, batch): 1, or 0 for what fills up."""
    weights: tuple[Tensor, ...]
    """Of each worker's first layer (rounds, units, columns)."""
    biases: tuple[Tensor, ...]
    """(rounds, units)."""
    rest: Tensor
    """(rounds, logits, all workers' units): what makes logits of what the ReLUs leave."""
    offset: Tensor
    """(rounds, logits)."""
    seen: tuple[Tensor, ...]
    """Of each worker's first layer the sum of all samples' gradients: (rounds, units, columns and one for the bias)."""
    loss: Loss
    known: bool = False
    """Whether the numbers that are predicted are known, where it is numbers."""

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def sizes(self) -> Tensor:
        """Return how many samples each batch has."""
        return self.present.sum(1)

    @property
    def columns(self) -> list[int]:
        """Return how many columns each worker has."""
        return [own.shape[2] for own in self.weights]

    @property
    def unknowns(self) -> int:
        """Return how many numbers a row has: all columns, and the number that is predicted, where it is one."""
        return sum(self.columns) + self.loss.of_number

    def part(self, rounds: slice | Tensor) -> "Stack":
        """Return some of the rounds."""
        return replace(
            self,
            indices=self.indices[rounds],
            present=self.present[rounds],
            weights=tuple(own[rounds] for own in self.weights),
            biases=tuple(own[rounds] for own in self.biases),
            rest=self.rest[rounds],
            offset=self.offset[rounds],
            seen=tuple(own[rounds] for own in self.seen),
        )

    def without(self, x: Tensor, chosen: Tensor, sure: Tensor) -> "Stack":
        """Return what is left for the samples that are not sure, which are numbered anew, if the others are right."""
        here = (self.present > 0) & ~sure[self.indices]
        order = here.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, : int(here.sum(1).amax())]
        known = self.present.clone()
        known[here] = 0
        seen = []
        for at in range(len(self)):
            one = self.part(slice(at, at + 1))
            rows = one.indices[0][known[at] > 0]
            added = one.added(x[rows][None], chosen[rows][None])
            seen.append([own[0] - part[0].sum(0) for own, part in zip(one.seen, added, strict=True)])
        numbers = (~sure).cumsum(0) - 1
        kept = here.any(1)
        left = replace(
            self,
            indices=numbers[self.indices].clamp_min(0).gather(1, order),
            present=here.to(self.present).gather(1, order),
            seen=tuple(torch.stack(own) for own in zip(*seen, strict=True)),
        )
        return left.part(kept)

    def to(self, dtype: torch.dtype) -> "Stack":
        """Return the same in another precision."""
        return replace(
            self,
            present=self.present.to(dtype),
            weights=tuple(own.to(dtype) for own in self.weights),
            biases=tuple(own.to(dtype) for own in self.biases),
            rest=self.rest.to(dtype),
            offset=self.offset.to(dtype),
            seen=tuple(own.to(dtype) for own in self.seen),
        )

    def added(self, x: Tensor, chosen: Tensor, blur: float = 0.0) -> list[Tensor]:
        """Return what rows add to each worker's gradient (rounds, rows, units, columns and one).

        `x` has (rounds, rows, unknowns), `chosen` 1 at each row's class (rounds, rows, classes). With `blur`, what
        they add on average if each number is off by that much, at random: it has no steps where a ReLU switches.
        """
        *slices, target = x.split([*self.columns, self.unknowns - sum(self.columns)], dim=2)
        passed = [
            _passed(own @ weight.transpose(1, 2) + bias[:, None], weight.norm(dim=2)[:, None], blur)
            for own, weight, bias in zip(slices, self.weights, self.biases, strict=True)
        ]
        logits = torch.cat([h for h, _, _ in passed], dim=2) @ self.rest.transpose(1, 2) + self.offset[:, None]
        if self.loss.of_number:
            u = self.loss.u(logits.flatten(0, 1), target.flatten()).unflatten(0, logits.shape[:2])
        else:
            possible = self.loss.possible_u(logits.flatten(0, 1)).unflatten(0, logits.shape[:2])
            u = (chosen[..., None] * possible).sum(2)
        back = (u @ self.rest).split([own.shape[1] for own in self.biases], dim=2)
        parts = zip(slices, self.weights, passed, back, strict=True)
        return [
            torch.cat(
                [_columns(own, v * live, None if edge is None else _rim(v, edge, blur, weight)), (v * live)[..., None]],
                dim=3,
            )
            for own, weight, (_, live, edge), v in parts
        ]


def _passed(a: Tensor, norm: Tensor, blur: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the ReLU of a, how far it is live, and the density of where it switches."""
    if blur == 0:
        return a.relu(), (a > 0).to(a), None
    width = (blur * norm).clamp_min(1e-12)
    live = 0.5 * (1 + torch.erf(a / width / math.sqrt(2)))
    edge = torch.exp(-(a / width).square() / 2) / (math.sqrt(2 * math.pi) * width)
    return a * live + width.square() * edge, live, edge


def _columns(x: Tensor, v: Tensor, rim: Tensor | None) -> Tensor:
    """Return what rows add to the weights; at a rim x and the ReLU depend on each other."""
    plain = v[..., None] * x[:, :, None]
    return plain if rim is None else plain + rim


def _rim(v: Tensor, edge: Tensor, blur: float, weight: Tensor) -> Tensor:
    return (v * edge)[..., None] * (blur**2 * weight)[:, None]
