"""The way down once the basin is right: limited-memory BFGS, each sample of a chunk by itself."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacker.inversion.objective import Goal
from attacker.inversion.options import InversionOptions
from attacker.inversion.values import allowed, in_levels

SHARPNESS = 200.0
"""Nearly the true gradient: just soft enough to pass the kinks where two cells of a window are level."""
MEMORY = 10
LOOK_EVERY = 10
STUCK = 0.9
"""A sample whose residual fell by less than this factor since the last look but one is in a wrong basin."""


def polish(objective: Goal, x: Tensor, options: InversionOptions, tick: Callable[[], None]) -> tuple[Tensor, Tensor]:
    """Return x, allowed, at a minimum of each sample's residual, and that; finished and stuck samples are dropped."""
    best, residual = allowed(x).clone(), torch.full((len(x),), torch.inf, device=x.device)
    index = torch.arange(len(x), device=x.device)
    state = _State.at(objective, x)
    before = [torch.full_like(state.loss, torch.inf)] * 2
    for step in range(options.polish_steps + 1):
        if step % LOOK_EVERY == 0 or step == options.polish_steps:
            best[index], residual[index] = feasible(objective, state.x, options.levels)
            going = (residual[index] > options.tolerance) & (state.loss < STUCK**2 * before[0])
            before = [before[1], state.loss]
            if not going.any() or step == options.polish_steps:
                break
            if not going.all():
                keep = going.nonzero().flatten()
                index, objective, state = index[keep], objective.rows(keep), state.rows(keep)
                before = [loss[keep] for loss in before]
        tick()
        state = state.step(objective)
    return best, residual


def feasible(objective: Goal, x: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Return x, allowed, and its residual: rounded to values that a pixel can have where that explains h better."""
    x = allowed(x)
    residual = objective.residuals(x)
    rounded = in_levels(x, levels)
    if rounded is None:
        return x, residual
    exact = objective.residuals(rounded)
    better = exact < residual
    return torch.where(_wide(better, x), rounded, x), torch.where(better, exact, residual)


@dataclass(frozen=True)
class _State:
    """Where each sample is, and the last steps and changes of its gradient."""

    x: Tensor
    loss: Tensor
    gradient: Tensor
    size: Tensor
    scale: Tensor
    history: tuple[tuple[Tensor, Tensor, Tensor], ...] = field(default=())

    @classmethod
    def at(cls, objective: Goal, x: Tensor) -> "_State":
        """Start with the step that is best along the gradient if h is linear: the scale of other models is unknown."""
        errors, loss, gradient = _evaluate(objective, x)
        small = 1e-2 / gradient.flatten(1).norm(dim=1).clamp_min(1e-20)
        with torch.no_grad():
            change = (objective.errors(x - _wide(small, x) * gradient, SHARPNESS) - errors) / small[:, None]
        scale = _dot(gradient, gradient) / change.square().sum(1).clamp_min(1e-30) / 2
        return cls(x, loss, gradient, torch.ones_like(loss), scale)

    def rows(self, keep: Tensor) -> "_State":
        """Return the state of some of the samples."""
        history = tuple((s[keep], y[keep], r[keep]) for s, y, r in self.history)
        return _State(self.x[keep], self.loss[keep], self.gradient[keep], self.size[keep], self.scale[keep], history)

    def step(self, objective: Goal) -> "_State":
        """Try a quasi-Newton step; a sample that it makes worse stays, but learns, and tries half of it next."""
        moved = -_wide(self.size, self.x) * self._direction()
        x = self.x + moved
        _, loss, gradient = _evaluate(objective, x)
        change = gradient - self.gradient
        curvature = _dot(moved, change)
        sound = curvature > 1e-13 * _dot(change, change)
        inverse = torch.where(sound, 1 / curvature, torch.zeros_like(curvature))
        change = torch.where(_wide(sound, x), change, torch.zeros_like(change))  # a step that overshot may hold NaN
        better = loss <= self.loss
        wide = _wide(better, x)
        return _State(
            torch.where(wide, x, self.x),
            torch.where(better, loss, self.loss),
            torch.where(wide, gradient, self.gradient),
            torch.where(better, torch.ones_like(self.size), self.size / 2),
            self.scale,
            (*self.history, (moved, change, inverse))[-MEMORY:],
        )

    def _direction(self) -> Tensor:
        """Return the two-loop recursion's estimate of the inverse Hessian times the gradient."""
        q = self.gradient
        weights = []
        for moved, change, inverse in reversed(self.history):
            weight = inverse * _dot(moved, q)
            q = q - _wide(weight, q) * change
            weights.append(weight)
        scale = self.scale
        if self.history:
            moved, change, inverse = self.history[-1]
            scale = torch.where(inverse > 0, _dot(moved, change) / _dot(change, change).clamp_min(1e-30), scale)
        q = _wide(scale, q) * q
        for (moved, change, inverse), weight in zip(self.history, reversed(weights), strict=True):
            q = q + _wide(weight - inverse * _dot(change, q), q) * moved
        downhill = _dot(q, self.gradient) > 0
        return torch.where(_wide(downhill, q), q, _wide(self.scale, q) * self.gradient)


def _evaluate(objective: Goal, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.detach().requires_grad_()
    errors = objective.errors(x, SHARPNESS)
    loss = errors.square().sum(1)
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    return errors.detach(), loss.detach(), gradient


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)


def _wide(per_sample: Tensor, like: Tensor) -> Tensor:
    return per_sample.view(-1, *[1] * (like.dim() - 1))
