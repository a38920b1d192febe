"""Strided convolutions with leaky ReLU instead of pooling: a network that can be inverted layer by layer."""

from pydantic import Field
from torch import nn

from vfl.models import SplitModel, models
from vfl.partition import Shape


@models.register("strided_cnn")
class StridedCNN(SplitModel):
    """In the manner of Zhu and Blaschko 2021 (R-GAP): conv 5x5 / 2, conv 3x3 / 2, conv 3x3, one fully connected."""

    channels: tuple[int, int, int] = Field((12, 36, 36), description="outputs of the three convolutions")
    slope: float = Field(0.2, ge=0, lt=1, description="of the leaky ReLU below zero; 0 makes it a ReLU")
    output: int = Field(10, ge=1, description="length of the vector that a worker sends to the label holder")

    def bottom(self, shape: Shape) -> nn.Module:
        """Build the network for slices (channels, height, width) of any size."""
        if len(shape) != 3:
            raise ValueError("it takes images (channels, height, width); use mlp for tables")
        inputs, height, width = shape
        first, second, third = self.channels
        places = -(-height // 4) * -(-width // 4)
        return nn.Sequential(
            nn.Conv2d(inputs, first, 5, stride=2, padding=2),
            nn.LeakyReLU(self.slope),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            nn.LeakyReLU(self.slope),
            nn.Conv2d(second, third, 3, padding=1),
            nn.LeakyReLU(self.slope),
            nn.Flatten(),
            nn.Linear(third * places, self.output),
        )
