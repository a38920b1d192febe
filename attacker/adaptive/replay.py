"""Rounds kept for an attacker who was told of the defence: it fills in what was hidden, solves, fills in again.

A round's true gradient is the mean of its samples' v h^T. So the current estimate predicts it; `Kind.consistent` says
which gradient nearest to the prediction explains the upload; least squares and the rank-one fit give the next estimate.
Single rows of the weight's gradient are kept, not mixtures: what a defence does to entries shows in entries only.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacker.adaptive.own import Own, rank_one
from attacker.adaptive.told import Kind

RIDGE = 1e-3
"""Of the mean diagonal of S^T S: a step along what the rounds hardly determine is a short one."""
CHUNK = 4 << 20
"""Entries of rounds that are worked on together."""


@dataclass
class Kept:
    """One worker's rounds: the rows `outputs` of the weight's gradient, all of the bias's, and each one's limit."""

    outputs: Tensor
    width: int
    """Outputs of the layer."""
    weight: list[Tensor] = field(default_factory=list)
    bias: list[Tensor] = field(default_factory=list)
    limits: list[tuple[float, float]] = field(default_factory=list)
    _places: list[Tensor] = field(default_factory=list)

    def add(self, weight: Tensor, bias: Tensor, limit: Callable[[Tensor], float]) -> None:
        """Keep a round."""
        self.weight.append(weight[self.outputs].float())
        self.bias.append(bias.double().clone())
        self.limits.append((limit(weight), limit(bias)))

    @property
    def directions(self) -> Tensor:
        """Return the kept outputs as unit vectors."""
        return torch.eye(self.width, dtype=torch.float64)[self.outputs]

    def uploads(self, part: slice) -> Tensor:
        """Return some rounds' weight gradients (rounds, entries)."""
        return torch.stack(self.weight[part]).double().flatten(1)

    def places(self, part: slice) -> Tensor:
        """Return the places of some rounds' entries in ascending order; they are sorted once."""
        for at in range(len(self._places), min(part.stop, len(self.weight))):
            self._places.append(self.weight[at].flatten().argsort().int())
        return torch.stack(self._places[part]).long()

    def forget_places(self) -> None:
        """Free the memory of what can be sorted again."""
        self._places.clear()

    def weighed(self, matrix: Tensor) -> Own:
        """Return `matrix` (samples, rounds) times the rounds."""
        total = torch.zeros(len(matrix), *self.weight[0].shape, dtype=torch.float64)
        for part in self.chunks():
            total += (matrix[:, part] @ self.uploads(part)).view_as(total)
        return Own(total, matrix @ torch.stack(self.bias), self.directions)

    def products(self) -> Tensor:
        """Return the inner products (rounds, rounds) of the rounds' gradients."""
        bias = torch.stack(self.bias)
        total = bias @ bias.T
        for row in range(len(self.outputs)):
            one = torch.stack([weight[row] for weight in self.weight]).double()
            total += one @ one.T
        return total

    def chunks(self) -> Iterator[slice]:
        """Cut the rounds into pieces that fit into memory as float64 several times over."""
        step = max(1, CHUNK // self.weight[0].numel())
        for start in range(0, len(self.weight), step):
            yield slice(start, start + step)


def fill_in(kept: Kept, matrix: Tensor, kind: Kind, *, iterations: int, tick: Callable[[], None]) -> Own:
    """Return the samples' own gradients, with S `matrix` (rounds, samples), after so many rounds of filling in."""
    gram = matrix.T @ matrix
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    inverse = torch.linalg.solve(gram, matrix.T)
    estimate = before = _Estimate.of(_first(kept, inverse, kind), kept.outputs)
    own, momentum, last = estimate.own(kept), 0, torch.inf
    for _ in range(iterations):
        tick()
        # Nesterov's acceleration, started again whenever the misfit grows (O'Donoghue and Candès 2015)
        ahead = estimate.beyond(before, momentum / (momentum + 3))
        own, misfit = _step(kept, matrix, inverse, kind, at=ahead)
        before, estimate = estimate, _Estimate.of(own, kept.outputs)
        momentum = momentum + 1 if misfit <= last else 0
        last = misfit
    kept.forget_places()
    return own if kind.keeps_scale else _rescaled(kept, matrix, own)


@dataclass(frozen=True)
class _Estimate:
    h: Tensor
    v: Tensor
    """(samples, all outputs)."""

    @classmethod
    def of(cls, own: Own, outputs: Tensor) -> "_Estimate":
        fit = rank_one(own.weight, own.bias[:, outputs])
        v = own.bias.clone()
        v[:, outputs] = fit.v
        return cls(fit.h, v)

    def own(self, kept: Kept) -> Own:
        return Own(self.v[:, kept.outputs, None] * self.h[:, None, :], self.v, kept.directions)

    def beyond(self, before: "_Estimate", step: float) -> "_Estimate":
        return _Estimate(self.h + step * (self.h - before.h), self.v + step * (self.v - before.v))


def _first(kept: Kept, inverse: Tensor, kind: Kind) -> Own:
    """Return plain least squares on the first guesses."""
    weight = torch.zeros(len(inverse), *kept.weight[0].shape, dtype=torch.float64)
    for part in kept.chunks():
        guess = kind.first(kept.uploads(part))
        weight += (inverse[:, part] @ guess).view_as(weight)
    return Own(weight, inverse @ kind.first(torch.stack(kept.bias)), kept.directions)


def _step(kept: Kept, matrix: Tensor, inverse: Tensor, kind: Kind, *, at: _Estimate) -> tuple[Own, float]:
    """Move every sample's gradient to where it explains the uploads better; return also how badly it did so far."""
    own = at.own(kept)
    weight, misfit = own.weight.clone(), 0.0
    limits = torch.tensor(kept.limits, dtype=torch.float64)
    for part in kept.chunks():
        predicted = matrix[part] @ own.weight.flatten(1)
        upload = kept.places(part) if kind.by_order else kept.uploads(part)
        left = kind.consistent(upload, predicted, limits[part, :1]) - predicted
        weight += (inverse[:, part] @ left).view_as(weight)
        misfit += float(left.square().sum())
    predicted = matrix @ own.bias
    bias = torch.stack(kept.bias)
    left = kind.consistent(bias.argsort(1) if kind.by_order else bias, predicted, limits[:, 1:]) - predicted
    return Own(weight, own.bias + inverse @ left, kept.directions), misfit


def _rescaled(kept: Kept, matrix: Tensor, own: Own) -> Own:
    """Put the sizes right where only the tensors' root mean squares say them: the weight's and the bias's."""
    found = _Estimate.of(own, kept.outputs)
    inputs = found.h.shape[1]
    # |sum of v h^T|^2 needs no matrix of the weight's size: all pairs of v v' h h'
    pairs = (found.v @ found.v.T) * (found.h @ found.h.T)
    weight = torch.einsum("tn,nm,tm->t", matrix, pairs, matrix).clamp_min(0) / (kept.width * inputs)
    bias = (matrix @ found.v).square().mean(1)
    limits = torch.tensor(kept.limits, dtype=torch.float64)
    right_weight, right_bias = ((limits.square().sum(0)) / torch.stack([weight.sum(), bias.sum()])).sqrt().tolist()
    return Own(own.weight * right_weight, own.bias * right_bias, kept.directions)
