"""The paper's network: two convolutions, then three fully connected layers.

Text and public code differ, and so options say which of them is meant: the text has d2 = 1024 where the code has 256
(`fc1`), the code begins as Keras does (`initialisation`), and its loss takes a softmax of a softmax (`double_softmax`).
"""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from vfl.models import LinearTop, SplitModel, models
from vfl.models.batch_norm import FixedBatchNorm, calibrate
from vfl.partition import Shape


@models.register("cafe_cnn")
class CafeCNN(SplitModel):
    """Jin et al. 2021 (CAFE): conv 5x5 64, conv 5x5 128, FC 256, FC 64, FC 10, with ReLU and max-pooling."""

    fc1: int = Field(256, ge=1, description="outputs of the first fully connected layer (the paper's d2)")
    fc2: int = Field(64, ge=1)
    output: int = Field(10, ge=1, description="length of the vector that a worker sends to the label holder")
    initialisation: Literal["torch", "keras"] = Field(
        "torch", description="torch's own, or Keras's as in the public code: Glorot's uniform weights, biases of zero"
    )
    double_softmax: bool = Field(
        False, description="the top model ends in a softmax, before that of the loss, as in the public code"
    )
    batch_norm: bool = Field(False, description="normalise after each convolution, with statistics fixed in the model")

    def bottom(self, shape: Shape) -> nn.Module:
        """Build the network for slices (channels, height, width) of any size."""
        if len(shape) != 3:
            raise ValueError("it takes images (channels, height, width); use mlp for tables")
        model = CafeBottom(shape, self)
        if self.initialisation == "keras":
            as_keras(model)
        if self.batch_norm:
            calibrate(model, shape)
        return model

    def top(self, widths: Sequence[int], classes: int) -> nn.Module:
        """Build one dense layer, with a softmax after it if asked for."""
        model = SoftmaxTop(sum(widths), classes) if self.double_softmax else LinearTop(sum(widths), classes)
        if self.initialisation == "keras":
            as_keras(model)
        return model


def as_keras(model: nn.Module) -> None:
    """Initialise convolutions and dense layers as Keras does by default."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)


class SoftmaxTop(LinearTop):
    """A dense layer whose outputs are probabilities; a loss that takes them for logits lies between 1.46 and 2.46."""

    def forward(self, z: Tensor) -> Tensor:
        """Return the classes' probabilities."""
        return torch.softmax(super().forward(z), dim=1)


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
