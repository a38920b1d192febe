"""L-BFGS (Liu and Nocedal 1989) for many small problems side by side: every row has its own curvature and step length.

Two ways to choose the step: `Backtracking`, driven from outside, for problems of any scale and start; `Halving`, of
which rows can be dropped as they are done, for the last stretch, where a full step is nearly always right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Memory = tuple[Tensor, Tensor, Tensor]
"""A step, the change of the gradient along it (rows, …), and 1 / <step, change> (rows,), zero where it says nothing."""
Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From points to their values (rows,) and gradients."""


def two_loops(gradient: Tensor, memories: Sequence[Memory], scale: Tensor) -> Tensor:
    """Return the estimate of the inverse Hessian, which begins as a `scale` (rows,), times the gradient."""
    q, weights = gradient, []
    for moved, change, inverse in reversed(memories):
        weight = inverse * dot(moved, q)
        q = q - wide(weight, q) * change
        weights.append(weight)
    q = wide(scale, q) * q
    for (moved, change, inverse), weight in zip(memories, reversed(weights), strict=True):
        q = q + wide(weight - inverse * dot(change, q), q) * moved
    return q


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner product of each row."""
    return (a * b).sum(tuple(range(1, a.dim())))


def wide(per_row: Tensor, like: Tensor) -> Tensor:
    """Return a number for each row in a shape that multiplies rows."""
    return per_row.view(-1, *[1] * (like.dim() - 1))


HISTORY = 20
SUFFICIENT = 1e-4
"""Armijo's: a step must bring this share of the decrease that the slope promises."""
SHORTEST = 1e-12


class Backtracking:
    """Shorter steps until the value falls enough. One call of `step` is one evaluation of the objective.

    DLG's public code uses torch's L-BFGS with a fixed step, which diverges on many seeds; backtracking does not.
    """

    def __init__(self, lr: float = 1.0) -> None:
        self._lr = lr
        self._x: Tensor | None = None

    def step(self, x: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """Accept the points whose value fell enough, and go on from there; take shorter steps to the others."""
        if self._x is None:
            self._begin(x, value, gradient)
            return self._next()
        promised = SUFFICIENT * self._length * (self._gradient * self._direction).sum(1)
        good = value.isfinite() & gradient.isfinite().all(1) & (value <= self._value + promised) & ~self._stuck
        self._accept(good, x, value, gradient)
        self._shorten(~good & ~self._stuck)
        return self._next()

    def best(self, x: Tensor) -> Tensor:
        """Return the last accepted points."""
        return x if self._x is None else self._x

    @property
    def finished(self) -> bool:
        """Whether every row is at the end of what float32 can tell."""
        return self._x is not None and bool(self._stuck.all())

    def _begin(self, x: Tensor, value: Tensor, gradient: Tensor) -> None:
        rows, entries = x.shape
        self._x, self._value, self._gradient = x.clone(), value.clone(), gradient.nan_to_num(0.0, 0.0, 0.0)
        self._moves, self._turns = x.new_zeros(HISTORY, rows, entries), x.new_zeros(HISTORY, rows, entries)
        self._scale = x.new_zeros(HISTORY, rows)  # 1 / <move, turn>; zero marks an unused place
        self._stuck = self._gradient.abs().amax(1) == 0
        self._direction, self._length = torch.zeros_like(x), x.new_zeros(rows)
        self._tries = x.new_zeros(rows)
        self._aim(torch.ones_like(self._stuck))

    def _accept(self, good: Tensor, x: Tensor, value: Tensor, gradient: Tensor) -> None:
        assert self._x is not None
        if not bool(good.any()):
            return
        move, turn = x - self._x, gradient.nan_to_num(0.0, 0.0, 0.0) - self._gradient
        curvature = (move * turn).sum(1)
        learned = good & (curvature > 1e-10 * turn.square().sum(1))
        self._remember(learned, move, turn, curvature)
        column = good[:, None]
        self._x, self._gradient = torch.where(column, x, self._x), torch.where(column, gradient, self._gradient)
        self._value = torch.where(good, value, self._value)
        self._stuck = self._stuck | (self._gradient.abs().amax(1) == 0)
        self._aim(good)

    def _remember(self, learned: Tensor, move: Tensor, turn: Tensor, curvature: Tensor) -> None:
        for rows, new in ((self._moves, move), (self._turns, turn)):
            older = torch.cat([rows[1:], new[None]])
            rows.copy_(torch.where(learned[None, :, None], older, rows))
        inverse = torch.where(learned, 1 / torch.where(learned, curvature, torch.ones_like(curvature)), 0)
        self._scale = torch.where(learned[None], torch.cat([self._scale[1:], inverse[None]]), self._scale)

    def _aim(self, rows: Tensor) -> None:
        """Set these rows' directions by the two loops, and their step length to the full one."""
        newest, size = self._scale[-1], self._turns[-1].square().sum(1)
        known = newest != 0
        first = 1 / self._gradient.abs().sum(1).clamp(min=1e-30)
        first = torch.minimum(first, torch.ones_like(first))
        gamma = torch.where(known, 1 / (newest * size).where(known, torch.ones_like(size)), torch.ones_like(size))
        used = [at for at in range(HISTORY) if bool((self._scale[at] != 0).any())]
        q = two_loops(self._gradient, [(self._moves[at], self._turns[at], self._scale[at]) for at in used], gamma)
        downhill = (q * self._gradient).sum(1) > 0
        q = torch.where(downhill[:, None], q, self._gradient)
        length = self._lr * torch.where(known & downhill, torch.ones_like(first), first)
        self._direction = torch.where(rows[:, None], -q, self._direction)
        self._length = torch.where(rows, length, self._length)
        self._tries = torch.where(rows, torch.zeros_like(length), self._tries)

    def _shorten(self, rows: Tensor) -> None:
        """Halve these rows' steps; one that has become too short starts again downhill, then ends."""
        if not bool(rows.any()):
            return
        self._length = torch.where(rows, self._length * 0.5 ** (1 + self._tries.clamp(max=3)), self._length)
        self._tries = torch.where(rows, self._tries + 1, self._tries)
        tired = rows & ((self._tries > 8) | (self._length < SHORTEST))
        if not bool(tired.any()):
            return
        fresh = tired & (self._scale == 0).all(0)
        self._stuck = self._stuck | fresh
        again = tired & ~fresh
        self._scale = torch.where(again[None], torch.zeros_like(self._scale), self._scale)
        self._aim(again)

    def _next(self) -> Tensor:
        assert self._x is not None
        moved = self._x + self._length[:, None] * self._direction
        return torch.where(self._stuck[:, None], self._x, moved)


SHORT_HISTORY = 5


@dataclass(frozen=True)
class Halving:
    """Where each row is, and what its last steps have shown; `step` returns where it is next."""

    x: Tensor
    value: Tensor
    gradient: Tensor
    size: Tensor
    scale: Tensor
    """The inverse Hessian's, as long as no step has shown it."""
    memories: tuple[Memory, ...] = ()

    def rows(self, keep: Tensor) -> "Halving":
        """Return some of the rows."""
        memories = tuple((s[keep], y[keep], r[keep]) for s, y, r in self.memories)
        return Halving(self.x[keep], self.value[keep], self.gradient[keep], self.size[keep], self.scale[keep], memories)

    def step(self, evaluate: Evaluate) -> "Halving":
        """Try a quasi-Newton step; a row that it makes worse stays, but learns, and tries half of it next."""
        moved = -wide(self.size, self.x) * self._direction()
        x = self.x + moved
        value, gradient = evaluate(x)
        change = gradient - self.gradient
        curvature = dot(moved, change)
        sound = curvature > 1e-13 * dot(change, change)
        inverse = torch.where(sound, 1 / curvature, torch.zeros_like(curvature))
        change = torch.where(wide(sound, x), change, torch.zeros_like(change))  # a step that overshot may hold NaN
        better = value <= self.value
        row = wide(better, x)
        return Halving(
            torch.where(row, x, self.x),
            torch.where(better, value, self.value),
            torch.where(row, gradient, self.gradient),
            torch.where(better, torch.ones_like(self.size), self.size / 2),
            self.scale,
            (*self.memories, (moved, change, inverse))[-SHORT_HISTORY:],
        )

    def _direction(self) -> Tensor:
        scale = self.scale
        if self.memories:
            moved, change, inverse = self.memories[-1]
            scale = torch.where(inverse > 0, dot(moved, change) / dot(change, change).clamp_min(1e-30), scale)
        q = two_loops(self.gradient, self.memories, scale)
        downhill = dot(q, self.gradient) > 0
        return torch.where(wide(downhill, q), q, wide(self.scale, q) * self.gradient)
