"""Fully connected networks, for tables and small images."""

import math
from collections.abc import Sequence

from pydantic import Field
from torch import nn

from vfl.models import SplitModel, models
from vfl.partition import Shape


@models.register("mlp")
class MLP(SplitModel):
    """Fully connected layers with ReLU between them; the first one sees the features themselves."""

    hidden: tuple[int, ...] = Field((64,), description="outputs of the hidden layers")
    output: int = Field(10, ge=1, description="length of the vector that a worker sends to the label holder")
    top_hidden: tuple[int, ...] = Field(
        (), description="outputs of hidden layers of the top model: a cut that lies further forward"
    )

    def bottom(self, shape: Shape) -> nn.Module:
        """Build the network for slices of any shape."""
        return nn.Sequential(nn.Flatten(), *_layers(math.prod(shape), self.hidden, self.output))

    def top(self, widths: Sequence[int], classes: int) -> nn.Module:
        """Build one dense layer, or the hidden layers that are asked for and one after a ReLU."""
        if not self.top_hidden:
            return super().top(widths, classes)
        return nn.Sequential(nn.ReLU(), *_layers(sum(widths), self.top_hidden, classes))


def _layers(features: int, hidden: Sequence[int], output: int) -> list[nn.Module]:
    """Return dense layers with ReLU between them."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(features, width), nn.ReLU()]
        features = width
    return [*layers, nn.Linear(features, output)]
