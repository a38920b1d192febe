"""Adam (Kingma and Ba 2015) over variables with a row for each sample or problem: rows know nothing of each other.

`Adam` moves all rows at each step, `RowAdam` those that come up. They round differently, and so do their callers in how
they put the step together: every attack keeps the numbers that it was measured with.
"""

import torch
from torch import Tensor


class Adam:
    """Moments of all rows."""

    def __init__(self, betas: tuple[float, float], fresh: tuple[float, float] | None = None) -> None:
        """Begin; `fresh` is the share of a new gradient in each moment, if it is not quite one minus its beta."""
        self._betas, self._fresh = betas, fresh or (1 - betas[0], 1 - betas[1])
        self._mean = self._square = torch.zeros(())
        self._count = 0

    def __call__(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Take in a gradient; return its mean and the root of its mean square, their quotient is the direction."""
        if self._count == 0:
            self._mean, self._square = torch.zeros_like(gradient), torch.zeros_like(gradient)
        self._count += 1
        self._mean.lerp_(gradient, self._fresh[0])
        self._square.lerp_(gradient.square(), self._fresh[1])
        first, second = (1 - beta**self._count for beta in self._betas)
        return self._mean / first, (self._square / second).sqrt()


class RowAdam:
    """Moments and step counts per row, as samples come up at different rounds."""

    def __init__(self, like: Tensor, betas: tuple[float, float], epsilon: float) -> None:
        self._betas, self._epsilon = betas, epsilon
        self.first = torch.zeros_like(like)
        self.second = torch.zeros_like(like)
        self.counts = torch.zeros(len(like), dtype=torch.float64, device=like.device)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return what it remembers, to be kept and to be copied back into."""
        return {"first": self.first, "second": self.second, "counts": self.counts}

    def step(self, values: Tensor, rows: Tensor, gradient: Tensor, lr: float) -> None:
        """Update values[rows] in place, with the bias correction of each row's own count."""
        b1, b2 = self._betas
        self.counts[rows] += 1
        counts = self.counts[rows]
        first = self.first[rows].lerp_(gradient, 1 - b1)
        second = self.second[rows].mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        self.first[rows], self.second[rows] = first, second
        column = (-1, *[1] * (values.dim() - 1))
        size = (lr / (1 - b1**counts)).to(values).reshape(column)
        root = (1 - b2**counts).sqrt().to(values).reshape(column)
        values.index_add_(0, rows, -size * first / second.sqrt_().div_(root).add_(self._epsilon))
