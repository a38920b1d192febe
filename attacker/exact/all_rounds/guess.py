"""A first guess of every sample and its class: each explains what the others, as far as they are known, leave.

At first nothing is known of any sample but that its columns are scaled. Every sample is tried in each class, and moved
towards what is left of its rounds' gradients when all others' part is taken out, on the average over what these may
be. What they may be besides is noise, whose covariance the known parameters tell: what stands out of it counts. As the
samples become known, the noise shrinks, and `blur`, by how much each may still be off, is made smaller with it.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attacker.exact.all_rounds.stack import Stack
from attacker.interface import Progress

BLURS = (1.0, 0.9, 0.8, 0.7, 0.62, 0.54, 0.47, 0.4, 0.33, 0.27)
STEPS = 16
GROUPS = 4
"""Spans of rounds; within one the parameters move too little to make the noise another."""
DRAWS = 4000
"""Draws that a covariance is estimated from."""
FLOOR = 1e-2
"""Added to a covariance, as a share of its largest eigenvalue: draws are no better than that."""
POWERS = 20
"""Steps of the power iteration that finds that eigenvalue; a few percent are near enough."""
RATE, SLOWER = 0.1, 0.97
SHARP = (0.15, 0.5)
"""How much evidence counts when classes are weighed, at first and at last: the noise is not as simple as that."""
MOST = 8.0


class Guess:
    """All samples in all classes, and how likely each class is."""

    def __init__(self, stack: Stack, samples: int, classes: int, *, labels: Tensor | None, draws: torch.Generator):
        self._stack, self._draws = stack, draws
        span = -(-len(stack) // GROUPS)
        self._spans = [slice(at, min(at + span, len(stack))) for at in range(0, len(stack), span)]
        self._x = 0.05 * torch.randn(classes, samples, stack.unknowns, generator=draws)
        self._known = labels is not None
        self._odds = torch.full((samples, classes), 1 / classes)
        if labels is not None and stack.loss.of_number:
            self._x[..., -1] = labels
        elif labels is not None:
            self._odds = torch.nn.functional.one_hot(labels.long(), classes).float()

    def run(self, progress: Progress) -> None:
        """Go from nothing to a guess."""
        for at, blur in enumerate(BLURS):
            sharp = SHARP[0] + (SHARP[1] - SHARP[0]) * at / (len(BLURS) - 1)
            self._stage(blur, sharp)
            progress("all rounds: a guess", at + 1, len(BLURS))

    @property
    def classes(self) -> Tensor:
        """Return each sample's likeliest class; of numbers there is one."""
        return self._odds.argmax(1)

    @property
    def x(self) -> Tensor:
        """Return each sample in its likeliest class: (samples, unknowns)."""
        return self._x[self.classes, torch.arange(len(self._odds))]

    def _stage(self, blur: float, sharp: float) -> None:
        """Move all samples a while, at one blur."""
        noises = [self._noise(self._stack.part(slice(own.start, own.start + 1)), blur) for own in self._spans]
        x = self._x.clone().requires_grad_()
        optimiser = torch.optim.Adam([x], lr=RATE * blur, betas=(0.9, 0.99))
        for step in range(STEPS):
            optimiser.zero_grad()
            misfit = 0.5 * x.detach().square().sum(2).T
            x.grad = x.detach().clone()
            for own, noise in zip(self._spans, noises, strict=True):
                misfit += self._pull(x, self._stack.part(own), noise, blur)
            if self._stack.known:
                x.grad[..., -1] = 0
            optimiser.step()
            for group in optimiser.param_groups:
                group["lr"] *= SLOWER
            if not self._known and step >= STEPS // 2:
                worse = sharp * (misfit - misfit.amin(1, keepdim=True))
                fresh = (-worse.clamp_max(MOST)).softmax(1)
                self._odds = 0.7 * self._odds + 0.3 * fresh
        self._x = x.detach()

    def _pull(self, x: Tensor, stack: Stack, noise: Sequence[Tensor], blur: float) -> Tensor:
        """Add what some rounds pull at every sample to its gradient; return how badly each class explains them."""
        here, sizes = stack.present[..., None], stack.sizes[:, None, None]
        odds = self._odds[stack.indices] * here
        parts = [self._parts(stack, own[stack.indices], label, blur) for label, own in enumerate(x)]
        misfit = torch.zeros_like(self._odds)
        pulls: list[Tensor] = [torch.zeros(())] * len(parts)
        for worker, inverse in enumerate(noise):
            added = [own[worker].detach() for own in parts]
            mean = sum((odds[..., [label]] * own for label, own in enumerate(added)), torch.zeros(()))
            left = (stack.seen[worker].flatten(1) - mean.sum(1))[:, None] + mean
            for label, own in enumerate(added):
                off = (left - own) * here
                weighed = off @ inverse / sizes
                misfit[:, label].index_add_(0, stack.indices.flatten(), (off * weighed).sum(2).flatten() / 2)
                pulls[label] = pulls[label] - (parts[label][worker] * weighed).sum()
        sum(pulls, torch.zeros(())).backward()
        return misfit

    def _parts(self, stack: Stack, rows: Tensor, label: int, blur: float) -> list[Tensor]:
        chosen = torch.zeros(*rows.shape[:2], self._odds.shape[1])
        chosen[..., label] = 1.0
        return [own.flatten(2) for own in stack.added(rows, chosen, blur)]

    def _noise(self, one: Stack, blur: float) -> list[Tensor]:
        """Return for each worker the inverse covariance of what a sample adds beyond what is expected of it."""
        samples, classes = self._odds.shape
        times = max(4, DRAWS // samples)
        with torch.no_grad():
            drawn = torch.multinomial(self._odds, times, replacement=True, generator=self._draws).T.flatten()
            rows = self._x[drawn, torch.arange(samples).repeat(times)]
            off = blur * torch.randn(rows.shape, generator=self._draws)
            if one.known:
                off[:, -1] = 0
            rows = rows + off
            chosen = torch.nn.functional.one_hot(drawn, classes).float()
            expected: Iterator[list[Tensor]] = (
                self._parts(one, own[None], label, blur) for label, own in enumerate(self._x)
            )
            means = [torch.zeros(())] * len(one.weights)
            for label, own in enumerate(expected):
                means = [mean + self._odds[:, [label]] * part[0] for mean, part in zip(means, own, strict=True)]
            real = (own[0].flatten(1) for own in one.added(rows[None], chosen[None]))
            return [_inverse(own - mean.repeat(times, 1)) for own, mean in zip(real, means, strict=True)]


def _inverse(rows: Tensor) -> Tensor:
    """Return the inverse of the rows' covariance, with the floor that the draws need."""
    covariance = (rows.T @ rows / len(rows)).double()
    direction = torch.ones(len(covariance), dtype=torch.float64)
    for _ in range(POWERS):
        direction = covariance @ direction
        largest = direction.norm().clamp_min(1e-300)
        direction = direction / largest
    covariance.diagonal().add_(FLOOR * largest)
    return torch.cholesky_inverse(torch.linalg.cholesky(covariance)).float()
