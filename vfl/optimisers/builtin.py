"""The optimisers that come with this project: gradient descent, with momentum if asked for, Adam and AdamW."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

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


@optimisers.register("adam")
class Adam(Optimiser):
    """Adam (Kingma and Ba, 2015), torch.optim.Adam."""

    keeps, counts = frozenset({"exp_avg", "exp_avg_sq"}), frozenset({"step"})

    momentum: float = Field(0.0, ge=0, lt=1)  # configs that were recorded say 0 for adam, too
    weight_decay: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _has_its_own_momentum(self) -> "Adam":
        if self.momentum:
            raise ValueError("momentum belongs to sgd; adam has its own")
        return self

    def start(self, parameters: "Sequence[nn.Parameter]", lr: float) -> "Optimizer":
        """Return torch's own."""
        from torch.optim import Adam

        return Adam(parameters, lr=lr, weight_decay=self.weight_decay)


@optimisers.register("adamw")
class AdamW(Optimiser):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), torch.optim.AdamW."""

    keeps, counts = frozenset({"exp_avg", "exp_avg_sq"}), frozenset({"step"})

    weight_decay: float = Field(0.01, ge=0)

    def start(self, parameters: "Sequence[nn.Parameter]", lr: float) -> "Optimizer":
        """Return torch's own."""
        from torch.optim import AdamW

        return AdamW(parameters, lr=lr, weight_decay=self.weight_decay)
