"""Least squares for what went into known networks, given what came out: Levenberg and Marquardt, many at once."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from vfl.observation import Tensors

RANK = 1e-10
"""Singular values squared, beside the largest, from which on a direction counts as seen."""
DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-3, 1e-13, 1e8
DONE = 1e-24
"""A sum of squared errors, beside the outputs' own, from which on nothing is left to explain."""
AT_ONCE = 10_000_000
"""Numbers in the parameters, or in the squared Jacobians, of the outputs that are computed together."""


@dataclass(frozen=True)
class Seen:
    """Outputs, in the order in which they came: of which sample, and under which version of the parameters."""

    samples: Tensor
    versions: Tensor
    outputs: Tensor
    parameters: Tensors
    """All versions of each tensor, one below the other."""

    def among(self, some: Tensor, total: int) -> "Seen":
        """Return the part that is about some of the samples, counted by their place among these."""
        place = torch.full((total,), -1)
        place[some] = torch.arange(len(some))
        here = place[self.samples] >= 0
        return Seen(place[self.samples[here]], self.versions[here], self.outputs[here], self.parameters)

    def split(self, features: int) -> Iterator["Seen"]:
        """Cut it into parts whose parameters and squared Jacobians fit into memory together."""
        each = max(features**2, sum(one[0].numel() for one in self.parameters.values()))
        for part in torch.arange(len(self.samples)).split(max(1, AT_ONCE // each)):
            yield Seen(self.samples[part], self.versions[part], self.outputs[part], self.parameters)


@dataclass(frozen=True)
class Solved:
    """What went in, how much of the outputs it leaves unexplained, and how much of it they determine."""

    x: Tensor
    """(samples, *shape)"""
    misfit: Tensor
    """The relative error of all outputs of a sample."""
    rounds_needed: Tensor
    """After how many of a sample's rounds its slice is determined; 0 if it never is."""


def solve(bottom: nn.Module, seen: Seen, start: Tensor, iterations: int) -> Solved:
    """Find the inputs (as `start`, a row for each sample) from which all outputs follow."""
    bottom, x = bottom.double().eval(), start.double().clone()
    size = _summed(seen.samples, seen.outputs.square().sum(1), len(x)).clamp(min=1e-300)
    damping = torch.full((len(x),), DAMPING, dtype=torch.float64)
    loss = _loss(bottom, seen, x)
    for _ in range(iterations):
        left = ((loss > DONE * size) & (damping < MOST_DAMPING)).nonzero()[:, 0]
        if not len(left):
            break
        some, now = seen.among(left, len(x)), x[left]
        squares, slopes = _normal(bottom, some, now)
        scale = squares.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-300)
        eye = torch.eye(squares.shape[1], dtype=torch.float64)
        step = torch.linalg.solve(squares + (damping[left] * scale)[:, None, None] * eye, slopes.unsqueeze(2))[..., 0]
        tried = now - step.reshape(now.shape)
        new = _loss(bottom, some, tried)
        better = new < loss[left]
        x[left[better]], loss[left[better]] = tried[better], new[better]
        damping[left] = torch.where(better, damping[left] / 5, damping[left] * 4).clamp(LEAST_DAMPING, MOST_DAMPING)
    return Solved(x, (loss / size).sqrt(), _determined(bottom, seen, x))


def _summed(samples: Tensor, values: Tensor, count: int) -> Tensor:
    return torch.zeros((count, *values.shape[1:]), dtype=torch.float64).index_add_(0, samples, values.double())


def _loss(bottom: nn.Module, seen: Seen, x: Tensor) -> Tensor:
    loss = torch.zeros(len(x), dtype=torch.float64)
    with torch.no_grad():
        for part in seen.split(1):
            loss += _summed(part.samples, _errors(bottom, part, x).square().sum(1), len(x))
    return loss


def _errors(bottom: nn.Module, seen: Seen, x: Tensor) -> Tensor:
    named = {name: tensor[seen.versions] for name, tensor in seen.parameters.items()}
    found: Tensor = vmap(lambda own, row: functional_call(bottom, own, (row.unsqueeze(0),))[0])(named, x[seen.samples])
    return found - seen.outputs


def _jacobian(bottom: nn.Module, seen: Seen, x: Tensor) -> Tensor:
    def one(own: dict[str, Tensor], row: Tensor) -> Tensor:
        found: Tensor = functional_call(bottom, own, (row.unsqueeze(0),))[0]
        return found

    named = {name: tensor[seen.versions] for name, tensor in seen.parameters.items()}
    found: Tensor = vmap(jacrev(one, argnums=1))(named, x[seen.samples])
    return found.detach().flatten(2)


def _normal(bottom: nn.Module, seen: Seen, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return J^T J and J^T r of each sample, over all its outputs."""
    flat = x[0].numel()
    squares = torch.zeros(len(x), flat, flat, dtype=torch.float64)
    slopes = torch.zeros(len(x), flat, dtype=torch.float64)
    for part in seen.split(flat):
        jacobian = _jacobian(bottom, part, x)
        error = _errors(bottom, part, x).detach()
        squares += _summed(part.samples, jacobian.mT @ jacobian, len(x))
        slopes += _summed(part.samples, (jacobian.mT @ error.unsqueeze(2))[..., 0], len(x))
    return squares, slopes


def _determined(bottom: nn.Module, seen: Seen, x: Tensor) -> Tensor:
    """Return after how many of its rounds each sample's Jacobian has full rank, at what was found; 0 for never."""
    needed = torch.zeros(len(x), dtype=torch.int64)
    squares = torch.zeros(len(x), x[0].numel(), x[0].numel(), dtype=torch.float64)
    for turn, part in enumerate(_by_turns(seen, len(x)), start=1):
        squares += _normal(bottom, part, x)[0]
        values = torch.linalg.eigvalsh(squares)
        full = values[:, 0] > RANK * values[:, -1].clamp(min=1e-300)
        needed[full & (needed == 0)] = turn
    return needed


def _by_turns(seen: Seen, count: int) -> Iterator[Seen]:
    """Yield every sample's first output, then every sample's second, and so on."""
    times, turns = torch.zeros(count, dtype=torch.int64), torch.empty_like(seen.samples)
    for place, sample in enumerate(seen.samples.tolist()):
        turns[place] = times[sample]
        times[sample] += 1
    for turn in range(int(times.max())):
        here = turns == turn
        yield Seen(seen.samples[here], seen.versions[here], seen.outputs[here], seen.parameters)
