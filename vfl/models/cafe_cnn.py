"""The paper's network, as its public code has it: two convolutions, then three fully connected layers."""

import torch
from pydantic import Field
from torch import Tensor, nn

from vfl.models import SplitModel, models
from vfl.models.batch_norm import FixedBatchNorm, calibrate
from vfl.partition import Shape


@models.register("cafe_cnn")
class CafeCNN(SplitModel):
    """Jin et al. 2021 (CAFE): conv 5x5 64, conv 5x5 128, FC 256, FC 64, FC 10, with ReLU and max-pooling."""

    fc1: int = Field(256, ge=1, description="outputs of the first fully connected layer (the paper's d2)")
    fc2: int = Field(64, ge=1)
    output: int = Field(10, ge=1, description="length of the vector that a worker sends to the label holder")
    batch_norm: bool = Field(False, description="normalise after each convolution, with statistics fixed in the model")

    def bottom(self, shape: Shape) -> nn.Module:
        """Build the network for slices (channels, height, width) of any size."""
        if len(shape) != 3:
            raise ValueError("it takes images (channels, height, width); use mlp for tables")
        model = CafeBottom(shape, self)
        if self.batch_norm:
            calibrate(model, shape)
        return model


class CafeBottom(nn.Module):
    """One worker's part; `fc1` is the first fully connected layer."""

    def __init__(self, shape: Shape, sizes: CafeCNN) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 64, 5, padding=2)
        self.conv2 = nn.Conv2d(64, 128, 5, padding=2)
        self.norm1 = FixedBatchNorm(64) if sizes.batch_norm else nn.Identity()
        self.norm2 = FixedBatchNorm(128) if sizes.batch_norm else nn.Identity()
        self.pool = nn.MaxPool2d(2, ceil_mode=True)  # "same" padding: odd sizes are rounded up
        pooled = -(-height // 4) * -(-width // 4)
        self.fc1 = nn.Linear(128 * pooled, sizes.fc1)
        self.fc2 = nn.Linear(sizes.fc1, sizes.fc2)
        self.fc3 = nn.Linear(sizes.fc2, sizes.output)

    def forward(self, x: Tensor) -> Tensor:
        """Return the vector that goes to the label holder."""
        h = self.pool(torch.relu(self.norm1(self.conv1(x))))
        h = self.pool(torch.relu(self.norm2(self.conv2(h)))).flatten(1)
        h = torch.relu(self.fc1(h))
        h = torch.relu(self.fc2(h))
        return torch.relu(self.fc3(h))
