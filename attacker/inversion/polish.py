"""The way down once the basin is right: limited-memory BFGS, each sample of a chunk by itself."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attacker.inversion.objective import Goal
from attacker.inversion.options import InversionOptions
from attacker.inversion.values import allowed, in_levels
from vfl.maths.lbfgs import Halving, dot, wide

SHARPNESS = 200.0
"""Nearly the true gradient: just soft enough to pass the kinks where two cells of a window are level."""
LOOK_EVERY = 10
STUCK = 0.9
"""A sample whose residual fell by less than this factor since the last look but one is in a wrong basin."""


def polish(objective: Goal, x: Tensor, options: InversionOptions, tick: Callable[[], None]) -> tuple[Tensor, Tensor]:
    """Return x, allowed, at a minimum of each sample's residual, and that; finished and stuck samples are dropped."""
    best, residual = allowed(x).clone(), torch.full((len(x),), torch.inf, device=x.device)
    index = torch.arange(len(x), device=x.device)
    state = _start(objective, x)
    before = [torch.full_like(state.value, torch.inf)] * 2
    for step in range(options.polish_steps + 1):
        if step % LOOK_EVERY == 0 or step == options.polish_steps:
            best[index], residual[index] = feasible(objective, state.x, options.levels)
            going = (residual[index] > options.tolerance) & (state.value < STUCK**2 * before[0])
            before = [before[1], state.value]
            if not going.any() or step == options.polish_steps:
                break
            if not going.all():
                keep = going.nonzero().flatten()
                index, objective, state = index[keep], objective.rows(keep), state.rows(keep)
                before = [loss[keep] for loss in before]
        tick()
        state = state.step(partial(_value, objective))
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
    return torch.where(wide(better, x), rounded, x), torch.where(better, exact, residual)


def _start(objective: Goal, x: Tensor) -> Halving:
    """Start with the step that is best along the gradient if h is linear: the scale of other models is unknown."""
    errors, loss, gradient = _evaluate(objective, x)
    small = 1e-2 / gradient.flatten(1).norm(dim=1).clamp_min(1e-20)
    with torch.no_grad():
        change = (objective.errors(x - wide(small, x) * gradient, SHARPNESS) - errors) / small[:, None]
    scale = dot(gradient, gradient) / change.square().sum(1).clamp_min(1e-30) / 2
    return Halving(x, loss, gradient, torch.ones_like(loss), scale)


def _value(objective: Goal, x: Tensor) -> tuple[Tensor, Tensor]:
    return _evaluate(objective, x)[1:]


def _evaluate(objective: Goal, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.detach().requires_grad_()
    errors = objective.errors(x, SHARPNESS)
    loss = errors.square().sum(1)
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    return errors.detach(), loss.detach(), gradient
