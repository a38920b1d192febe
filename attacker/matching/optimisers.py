"""How guesses move: Adam, Adam on the gradient's sign, plain descent, L-BFGS.

Variables are rows, one for each problem, that know nothing of each other: a row's state is its own.
"""

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor

from vfl.maths.adam import Adam
from vfl.maths.lbfgs import Backtracking

Name = Literal["adam", "signed_adam", "sgd", "lbfgs"]
BETAS = (0.9, 0.999)
FRESH = (1 - float(torch.tensor(0.9)), 1 - float(torch.tensor(0.999)))
"""One minus the betas as float32 has them."""
Decay = Callable[[int], float]
"""iteration -> factor of the step size"""


class Optimiser(Protocol):
    """Tells where to look next."""

    def step(self, x: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """Return the next points (rows, entries), given values (rows,) and gradients at the present ones."""

    def best(self, x: Tensor) -> Tensor:
        """Return the points to end with, given the present ones."""

    @property
    def finished(self) -> bool:
        """Whether no row can get any further."""


class Descent:
    """Adam, Adam on signs, or plain gradient descent, with a decaying step."""

    def __init__(self, name: Literal["adam", "signed_adam", "sgd"], lr: float, decay: Decay) -> None:
        self._name, self._lr, self._decay = name, lr, decay
        self._count = 0
        self._adam = Adam(BETAS, FRESH)
        self.finished = False

    def step(self, x: Tensor, value: Tensor, gradient: Tensor) -> Tensor:  # noqa: ARG002
        """Take one step."""
        lr = self._lr * self._decay(self._count)
        self._count += 1
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        if self._name == "sgd":
            return x - lr * gradient
        if self._name == "signed_adam":
            gradient = gradient.sign()
        mean, size = self._adam(gradient)
        # Adam's epsilon of 1e-8 would stop rows whose objective has become small: only zero must not be divided by
        return x - lr * mean / (size + 1e-20)

    def best(self, x: Tensor) -> Tensor:
        """Return the present points."""
        return x


def three_steps(iterations: int) -> Decay:
    """Geiping et al.'s: a tenth of the step after 3/8, 5/8 and 7/8 of the iterations."""
    return lambda at: 0.1 ** sum(at >= iterations * share for share in (3 / 8, 5 / 8, 7 / 8))


def constant(at: int) -> float:  # noqa: ARG001
    """No decay."""
    return 1.0


def make(name: Name, lr: float, iterations: int, steps_down: bool) -> Optimiser:
    """Return a fresh optimiser."""
    if name == "lbfgs":
        return Backtracking(lr)
    return Descent(name, lr, three_steps(iterations) if steps_down else constant)
