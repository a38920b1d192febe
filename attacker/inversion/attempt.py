"""One attempt at a chunk of samples: where it starts, how it searches, and the way down from there."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from attacker.inversion.objective import Goal, Objective, lay_out, roughly
from attacker.inversion.values import (
    InversionOptions,
    allowed,
    in_levels,
    is_image,
    near_levels,
    nothing_known,
    start_near,
)
from vfl.maths.adam import Adam
from vfl.maths.lbfgs import Halving, dot, wide
from vfl.maths.variation import ACROSS, DOWN, differences
from vfl.observation import Tensors
from vfl.seeds import generator

Tick = Callable[[], None]
"""Called by the work at every step; raises when the work is to end early."""


@dataclass(frozen=True)
class Problem:
    """What all chunks of a model have in common; the model is on the CPU, wherever they are worked on."""

    model: nn.Module
    layer: str
    seed: int
    device: str
    unit: bool = False


@dataclass(frozen=True)
class Chunk:
    """Some samples and what there is of them so far: all that an attempt needs, here or on another machine."""

    problem: Problem
    options: InversionOptions
    samples: Tensor
    targets: Tensor
    best: Tensor
    number: int | None
    """Of the attempt, 0, 1, …; None: no search, on from the best so far."""
    parameters: Tensors | None = None
    """In place of some of the model's own."""

    def __call__(self, tick: Tick) -> tuple[Tensor, Tensor]:
        """Return data and residuals."""
        problem, place = self.problem, torch.device(self.problem.device)
        # a copy: the hook that catches the representation must not meet that of another thread
        model = copy.deepcopy(problem.model)
        if self.parameters is not None:
            model.load_state_dict(dict(self.parameters), strict=False)
        model = model.to(place)
        layout = lay_out(model, problem.layer, self.best.to(place))
        objective = Objective.of(model, problem.layer, self.targets.to(place), problem.unit)
        best = self.best.to(place, memory_format=layout)
        if self.number is None:
            x, residual = polish(objective, best, self.options, tick)
        else:
            how = {"number": self.number, "seed": problem.seed}
            x, residual = attempt(objective, best, self.samples, options=self.options, tick=tick, **how)
        return x.cpu(), residual.cpu()


def attempt(
    objective: Goal, best: Tensor, samples: Tensor, *, number: int, seed: int, options: InversionOptions, tick: Tick
) -> tuple[Tensor, Tensor]:
    """Return data and residuals of attempt number 0, 1, …; `best` (samples, *shape) is what there is so far."""
    if number == 0 and bool(best.isfinite().all()):
        start, steps, gentle = best, math.ceil(ESTIMATED * options.search_steps), GENTLE
    else:
        # each sample's own noise, whatever chunk it is in
        randoms = (generator(seed, f"inversion attempt {number}", int(sample)) for sample in samples)
        noise = torch.stack([torch.randn(best.shape[1:], generator=random) for random in randoms])
        middle, gentle = (best, GENTLE) if repairs(number) else (nothing_known(best), 1.0)
        start = middle + start_near(best, options.noise, number < 2) * noise.to(best.device)
        steps = options.search_steps * (1 + number // 2 * 2)
    how = _softer(options) if number >= SOFT_FROM else options
    x = search(objective, start, how, steps=steps, gentle=gentle, tick=tick)
    return _down(objective, x, options, tick)


ESTIMATED = 0.6
"""The share of its steps that the first search takes if it starts from an estimate."""
GENTLE = 1 / 3
"""How fast and how smooth a search is where there is something to keep, beside one from grey."""
SOFT_FROM, SOFT, SMOOTH = 3, 1 / 4, 3.0
"""The attempt from which on searches are softer and smoother: slower, but they pass by minima that others end in."""


def _softer(options: InversionOptions) -> InversionOptions:
    change = {"sharpness": SOFT * options.sharpness, "smoothness": SMOOTH * options.smoothness}
    return options.model_copy(update=change)


def repairs(number: int) -> bool:
    """Tell whether an attempt starts from what the one before it found, most of which is right, or from grey."""
    return number % 2 == 1


BREATH, CALM = 1.2, 1 / 20
"""The steps of the search that interrupts a slow way down, beside those of the first, and how gentle it is."""


def _down(objective: Goal, x: Tensor, options: InversionOptions, tick: Tick) -> tuple[Tensor, Tensor]:
    """Return x at a minimum of each sample's residual, and that; a slow way down is interrupted by a calm search.

    Where h says little, as in a network that was trained, quasi-Newton steps creep along directions that h hardly
    tells. What total variation says of these brings the next steps to the end.
    """
    best, residual, slow = descend(objective, x, options, tick, pace=PACE)
    rows = slow.nonzero().flatten()
    if len(rows):
        some, steps = objective.rows(rows), math.ceil(BREATH * options.search_steps)
        calm = search(some, best[rows], options, steps=steps, gentle=CALM, tick=tick)
        found, left, _ = descend(some, calm, options, tick)
        better = left < residual[rows]
        best[rows[better]], residual[rows[better]] = found[better], left[better]
    return best, residual


BETAS = (0.7, 0.9)
"""Shorter memories than Adam's usual: the problem changes under it, and it takes tens of steps, not thousands."""
COLOUR = 2.0
"""Weight of rough colours beside rough brightness: wrong minima of photographs show as coloured noise in textures."""


def search(objective: Goal, x: Tensor, options: InversionOptions, *, steps: int, gentle: float, tick: Tick) -> Tensor:
    """Return where annealed Adam gets to from x: it starts smooth and soft and ends at the true problem."""
    adam = Adam(BETAS)
    objective = roughly(objective, x)
    for step in range(steps):
        tick()
        left = 1 - step / steps
        x = x.detach().requires_grad_()
        loss = objective.errors(x, options.sharpness / left).square().sum()
        loss = loss + gentle * options.smoothness * left**2 * roughness(x).sum()
        (gradient,) = torch.autograd.grad(loss, x)
        rate = gentle * options.learning_rate * (1 + math.cos(math.pi * (1 - left))) / 2
        mean, size = adam(gradient)
        x = x.detach() - rate * (mean / (size + 1e-12))
    return x.detach()


def roughness(x: Tensor) -> Tensor:
    """Return each image's mean absolute difference of neighbours, that of its colours added.

    Zero for tables, whose columns have no order.
    """
    if not is_image(x):
        return x.new_zeros(len(x))
    rough = _differences(x)
    if x.shape[1] > 1:
        rough = rough + COLOUR * _differences(x - x.mean(1, keepdim=True))
    return rough


def _differences(x: Tensor) -> Tensor:
    across, down = differences(x, ACROSS), differences(x, DOWN)
    return sum((apart.sum((1, 2, 3)) / max(1, apart[0].numel()) for apart in (across, down)), x.new_zeros(len(x)))


SHARPNESS, SHARPEST = 0.25, 400.0
"""Of the way down: the first over the residual, the second at most. The gradient is as soft as is unknown which cell of
a window wins: the smaller the errors are, the nearer two cells must be for that."""
LOOK_EVERY, PATIENCE = 3, 6
STUCK = 0.9
"""A sample whose residual fell by less than this factor in the last `PATIENCE` looks is in a wrong basin."""
PACE, NEARLY = 0.5, 1e-2
"""One whose residual is below the second and fell by less than the first in as many looks is in the right basin, but
slow."""


def polish(objective: Goal, x: Tensor, options: InversionOptions, tick: Tick) -> tuple[Tensor, Tensor]:
    """Return x, allowed, at a minimum of each sample's residual, and that."""
    return descend(objective, x, options, tick)[:2]


def descend(
    objective: Goal, x: Tensor, options: InversionOptions, tick: Tick, *, pace: float = STUCK
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, allowed, at a minimum of each sample's residual, that, and who was dropped as slower than the pace.

    Finished and stuck samples are dropped too.
    """
    best, residual = allowed(x).clone(), torch.full((len(x),), torch.inf, device=x.device)
    index, slow = torch.arange(len(x), device=x.device), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    state = _start(objective, x)
    before = [torch.full_like(state.value, torch.inf)] * PATIENCE
    for step in range(options.polish_steps + 1):
        if step % LOOK_EVERY == 0 or step == options.polish_steps:
            snapped, *exact = _snap(objective, state.x, options)
            best[index[snapped]], residual[index[snapped]] = exact
            going = (state.value > options.tolerance**2) & (state.value < STUCK**2 * before[0]) & ~snapped
            late = going & (state.value >= pace**2 * before[0]) & (state.value < NEARLY**2)
            slow[index[late]] = True
            going &= ~late & (step < options.polish_steps)
            end = (~going & ~snapped).nonzero().flatten()
            if len(end):
                best[index[end]], residual[index[end]] = feasible(objective.rows(end), state.x[end], options.levels)
            if not going.any():
                break
            before = [*before[1:], state.value]
            if not going.all():
                keep = going.nonzero().flatten()
                index, objective, state = index[keep], objective.rows(keep), state.rows(keep)
                before = [loss[keep] for loss in before]
        tick()
        state = state.step(partial(_value, objective, _sharpness(state.value.sqrt())))
    return best, residual, slow


def _snap(objective: Goal, x: Tensor, options: InversionOptions) -> tuple[Tensor, Tensor, Tensor]:
    """Tell which samples' pixels, rounded to their levels, explain h to the tolerance; return these, and residuals."""
    some = near_levels(x, options.levels).nonzero().flatten()
    rounded = in_levels(allowed(x[some]), options.levels)
    if not len(some) or rounded is None:
        return torch.zeros(len(x), dtype=torch.bool, device=x.device), x[:0], x.new_zeros(0)
    left = objective.rows(some).residuals(rounded)
    good = left <= options.tolerance
    done = torch.zeros(len(x), dtype=torch.bool, device=x.device).index_fill(0, some[good], True)
    return done, rounded[good], left[good]


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
    sharpness = _sharpness(objective.residuals(x))
    errors, loss, gradient = _evaluate(objective, x, sharpness)
    small = 1e-2 / gradient.flatten(1).norm(dim=1).clamp_min(1e-20)
    with torch.no_grad():
        change = (objective.errors(x - wide(small, x) * gradient, sharpness) - errors) / small[:, None]
    scale = dot(gradient, gradient) / change.square().sum(1).clamp_min(1e-30) / 2
    return Halving(x, loss, gradient, torch.ones_like(loss), scale)


def _sharpness(residual: Tensor) -> Tensor:
    return (SHARPNESS / residual.clamp_min(1e-12)).clamp_max(SHARPEST)


def _value(objective: Goal, sharpness: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return _evaluate(objective, x, sharpness)[1:]


def _evaluate(objective: Goal, x: Tensor, sharpness: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.detach().requires_grad_()
    errors = objective.errors(x, sharpness)
    loss = errors.square().sum(1)
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    return errors.detach(), loss.detach(), gradient
