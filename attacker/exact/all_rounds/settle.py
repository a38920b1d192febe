"""From a good guess to the samples themselves: Gauss-Newton over all rounds, in which units that disagree count less.

Where a ReLU is switched wrongly for a sample of a batch, that unit's equations are off by a whole sample; all others
hold as they are. Residuals tell the two apart, so that each step leans on the equations that hold.
"""

import torch
from torch import Tensor
from torch.func import jacfwd, vmap

from attacker.exact.all_rounds.stack import Stack
from attacker.interface import Progress

ITERATIONS = 14
LEAN = 0.3
"""The share of units whose residuals are taken for right, and set the scale of those that are not."""
SMALLEST = 1e-6
DONE = 1e-5
"""A median residual, as a share of what one sample adds, below which nothing is left but rounding."""
DAMPED = 1e-6
EXPLAINED = 1e-4
"""A unit that is explained so well, as a share of what a sample adds to it, speaks for that sample."""


def settle(stack: Stack, x: Tensor, labels: Tensor, *, classes: int, progress: Progress) -> tuple[Tensor, float]:
    """Return the samples, and the median residual of a unit, as a share of what one sample adds to it."""
    stack, x = stack.to(torch.float64), x.double()
    chosen = torch.nn.functional.one_hot(labels, classes).double()
    best, least, idle = x, torch.inf, 0
    for at in range(ITERATIONS + 1):
        residuals, size = _residuals(stack, x, chosen)
        lengths = torch.cat([own.norm(dim=2) for own in residuals], dim=1) / size
        middle = float(lengths.median())
        idle = idle + 1 if middle > 0.9 * least else 0
        if middle < least:
            best, least = x, middle
        progress("all rounds: settling", at + 1, ITERATIONS + 1)
        if at == ITERATIONS or (idle and least < DONE) or idle > 3:
            break
        scale = max(float(lengths.flatten().kthvalue(max(1, int(LEAN * lengths.numel()))).values), SMALLEST)
        trust = scale / (lengths.square() + scale**2).sqrt()
        x = x + _step(stack, x, chosen, residuals=residuals, weights=(trust if at < 2 else trust.square()) / size)
    return best, least


def confirmed(stack: Stack, x: Tensor, labels: Tensor, *, classes: int) -> tuple[Tensor, float]:
    """Tell which samples seem right, and return the median residual of a unit, as `settle` does.

    A wrong sample spoils all units to which it adds. One seems right if at each worker a unit to which it adds is
    explained: others seldom make up for what it lacks, in all numbers of a unit.
    """
    stack, x = stack.to(torch.float64), x.double()
    chosen = torch.nn.functional.one_hot(labels, classes).double()
    sure = torch.zeros(len(x), len(stack.columns), dtype=torch.bool)
    shares = []
    for at in range(len(stack)):
        one, rows, added = _round(stack, x, chosen, at)
        for worker, (seen, own) in enumerate(zip(one.seen, added, strict=True)):
            left, parts = (seen[0] - own[0].sum(0)).norm(dim=1), own[0].norm(dim=2)
            sure[rows, worker] |= (left < EXPLAINED * parts).any(1)
            shares.append(left / parts.square().mean(0).sqrt().clamp_min(1e-9 * parts.amax()))
    return sure.all(1), float(torch.cat(shares).median())


def _round(stack: Stack, x: Tensor, chosen: Tensor, at: int) -> tuple[Stack, Tensor, list[Tensor]]:
    """Return one round, its samples, and what they add."""
    one = stack.part(slice(at, at + 1))
    rows = one.indices[0][one.present[0] > 0]
    return one, rows, one.added(x[rows][None], chosen[rows][None])


def _residuals(stack: Stack, x: Tensor, chosen: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return what the samples leave of each unit's gradient, and what one of them adds to it (rounds, all units)."""
    left, size = [], []
    for at in range(len(stack)):
        one, _, added = _round(stack, x, chosen, at)
        left.append([seen[0] - own[0].sum(0) for seen, own in zip(one.seen, added, strict=True)])
        size.append(torch.cat([own[0].norm(dim=2).square().mean(0).sqrt() for own in added]))
    sizes = torch.stack(size)
    return [torch.stack(own) for own in zip(*left, strict=True)], sizes + 1e-9 * sizes.amax()


def _step(stack: Stack, x: Tensor, chosen: Tensor, *, residuals: list[Tensor], weights: Tensor) -> Tensor:
    """Return the Gauss-Newton step of all samples at once."""
    samples, columns = x.shape
    square = torch.zeros(samples * columns, samples * columns)
    right = torch.zeros(samples * columns)
    units = [own.shape[1] for own in stack.biases]
    for at in range(len(stack)):
        one = stack.part(slice(at, at + 1))
        rows = one.indices[0][one.present[0] > 0]

        def added(row: Tensor, label: Tensor, one: Stack = one) -> Tensor:
            return torch.cat([own.flatten() for own in one.added(row[None, None], label[None, None])])

        slopes = vmap(jacfwd(added))(x[rows], chosen[rows]).float()  # (samples, numbers, columns)
        if stack.known:
            slopes[..., -1] = 0
        parts = zip(weights[at].split(units), stack.columns, strict=True)
        weight = torch.cat([own.repeat_interleave(width + 1) for own, width in parts]).float()
        slopes = (slopes * weight[:, None]).permute(1, 0, 2).flatten(1)
        places = (rows[:, None] * columns + torch.arange(columns)).flatten()
        square[places[:, None], places] += slopes.T @ slopes
        left = torch.cat([own[at].flatten() for own in residuals]).float() * weight
        right.index_add_(0, places, slopes.T @ left)
    whole = square.double()
    whole.diagonal().add_(DAMPED * whole.diagonal().mean())
    step: Tensor = torch.linalg.solve(whole, right.double())
    return step.reshape(samples, columns)
