"""How guesses move: Adam, Adam on the gradient's sign, plain descent, L-BFGS.

Variables are rows, one for each problem, that know nothing of each other: a row's state is its own.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from vfl.maths.adam import Adam
from vfl.maths.lbfgs import Backtracking

Name = Literal["adam", "signed_adam", "sgd", "lbfgs"]
BETAS = (0.9, 0.999)
FRESH = (1 - float(torch.tensor(0.9)), 1 - float(torch.tensor(0.999)))
"""One minus the betas as float32 has them."""


class Descent:
    """Adam, Adam on signs, or plain gradient descent; after each of some iterations a tenth of the step."""

    def __init__(self, name: Literal["adam", "signed_adam", "sgd"], lr: float, steps_down: Sequence[float]) -> None:
        self._name, self._lr, self._steps_down = name, lr, steps_down
        self._count = 0
        self._adam = Adam(BETAS, FRESH)
        self.finished = False

    def step(self, x: Tensor, value: Tensor, gradient: Tensor) -> Tensor:  # noqa: ARG002
        """Return the next points (rows, entries), given values (rows,) and gradients at the present ones."""
        lr = self._lr * 0.1 ** sum(self._count >= at for at in self._steps_down)
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


def make(name: Name, lr: float, iterations: int, steps_down: bool) -> Descent | Backtracking:
    """Return a fresh optimiser; its steps may go down as Geiping et al.'s, after 3/8, 5/8 and 7/8 of the iterations."""
    if name == "lbfgs":
        return Backtracking(lr)
    return Descent(name, lr, [iterations * share for share in (3 / 8, 5 / 8, 7 / 8)] if steps_down else ())
