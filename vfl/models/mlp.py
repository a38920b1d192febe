"""Fully connected networks, for tables and small images."""

import math

from pydantic import Field
from torch import nn

from vfl.models import SplitModel, models
from vfl.partition import Shape


@models.register("mlp")
class MLP(SplitModel):
    """Fully connected layers with ReLU between them; the first one sees the features themselves."""

    hidden: tuple[int, ...] = Field((64,), description="outputs of the hidden layers")
    output: int = Field(10, ge=1, description="length of the vector that a worker sends to the label holder")

    def bottom(self, shape: Shape) -> nn.Module:
        """Build the network for slices of any shape."""
        features = math.prod(shape)
        layers: list[nn.Module] = [nn.Flatten()]
        for width in self.hidden:
            layers += [nn.Linear(features, width), nn.ReLU()]
            features = width
        layers.append(nn.Linear(features, self.output))
        return nn.Sequential(*layers)
