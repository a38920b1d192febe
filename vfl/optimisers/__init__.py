"""Optimisers: how the coordinator moves the parameters by a round's gradients. Read with the config, without torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from vfl.registry import Plugin, Registry

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Optimiser(Plugin):
    """An optimiser plug-in: its fields are its options, which stand beside `lr` in the config's `training` section."""

    keeps: ClassVar[frozenset[str]] = frozenset()
    """The tensors in its state of each parameter that are shaped like the parameter; a checkpoint holds them."""
    counts: ClassVar[frozenset[str]] = frozenset()
    """Those that are one float32 number each, as the number of steps."""

    def start(self, parameters: "Sequence[nn.Parameter]", lr: float) -> "Optimizer":
        """Return the optimiser of these parameters; each round sets the `lr` of its groups, then it takes a step."""
        raise NotImplementedError


optimisers = Registry("optimizer", Optimiser, "cafe.optimizers", ["vfl.optimisers.builtin"], key="training.optimizer")
