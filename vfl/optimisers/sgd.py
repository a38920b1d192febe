"""Gradient descent, with momentum if asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from vfl.optimisers import Optimiser, optimisers

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@optimisers.register("sgd")
class Sgd(Optimiser):
    """Stochastic gradient descent, torch.optim.SGD."""

    keeps = frozenset({"momentum_buffer"})

    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)

    def start(self, parameters: "Sequence[nn.Parameter]", lr: float) -> "Optimizer":
        """Return torch's own."""
        from torch.optim import SGD

        return SGD(parameters, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay)
