"""The small smooth network of DLG: three convolutions with sigmoid, one fully connected layer."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vfl.models import LinearTop, SplitModel, models
from vfl.partition import Shape


@models.register("lenet")
class LeNet(SplitModel):
    """Zhu et al. 2019 (DLG): conv 5x5 12 with sigmoid, thrice; the top model is its fully connected layer.

    Sigmoid and strides instead of ReLU and pooling, because second derivatives of those are zero or undefined. All
    parameters start uniform in [-0.5, 0.5], as in DLG's public code.
    """

    def bottom(self, shape: Shape) -> nn.Module:
        """Build the network for slices (channels, height, width) of any size."""
        if len(shape) != 3:
            raise ValueError("it takes images (channels, height, width); use mlp for tables")
        return _wide(LeNetBottom(shape[0]))

    def top(self, widths: Sequence[int], classes: int) -> nn.Module:
        """Build the layer that sees all workers' outputs."""
        return _wide(LinearTop(sum(widths), classes))


class LeNetBottom(nn.Module):
    """One worker's part; its output is the flattened last convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 12, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(12, 12, 5, stride=2, padding=2)
        self.conv3 = nn.Conv2d(12, 12, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the vector that goes to the label holder."""
        h = torch.sigmoid(self.conv1(x))
        h = torch.sigmoid(self.conv2(h))
        return torch.sigmoid(self.conv3(h)).flatten(1)


def _wide(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model
