"""L-BFGS for many small problems side by side: every row has its own curvature, step length and end."""

import torch
from torch import Tensor

HISTORY = 20
SUFFICIENT = 1e-4
"""Armijo's: a step must bring this share of the decrease that the slope promises."""
SHORTEST = 1e-12


class LBFGS:
    """Liu and Nocedal 1989, with backtracking. One call of `step` is one evaluation of the objective.

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
        q, factors = self._gradient.clone(), []
        used = [at for at in range(HISTORY) if bool((self._scale[at] != 0).any())]
        for at in reversed(used):
            factor = self._scale[at] * (self._moves[at] * q).sum(1)
            q = q - factor[:, None] * self._turns[at]
            factors.append(factor)
        newest = self._scale[-1]
        size = self._turns[-1].square().sum(1)
        known = newest != 0
        first = 1 / self._gradient.abs().sum(1).clamp(min=1e-30)
        first = torch.minimum(first, torch.ones_like(first))
        gamma = torch.where(known, 1 / (newest * size).where(known, torch.ones_like(size)), torch.ones_like(size))
        q = q * gamma[:, None]
        for at, factor in zip(used, reversed(factors), strict=True):
            back = self._scale[at] * (self._turns[at] * q).sum(1)
            q = q + (factor - back)[:, None] * self._moves[at]
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
