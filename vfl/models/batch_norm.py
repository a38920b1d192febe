"""Batch norm with statistics that are part of the model: fixed, and known to every party that can build it.

In training mode batch norm normalises with the batch's own statistics, and its running averages stay with the worker:
only parameters and their gradients travel in this protocol. So the statistics here are constants of the model, as
those of a pre-trained network would be. They are measured when the model is built, on smooth random images drawn from
the seed, never on a worker's data.
"""

from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from vfl.partition import Shape

IMAGES, EPSILON = 64, 1e-5


class FixedBatchNorm(nn.Module):
    """Normalises each channel by the model's own mean and variance, then scales and shifts (both are trained)."""

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels), persistent=False)
        self.register_buffer("variance", torch.ones(channels), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised activations (batch, channels, height, width)."""
        scale = (self.variance + EPSILON).rsqrt()
        normal = (x - self.mean[:, None, None]) * scale[:, None, None]
        return normal * self.weight[..., None, None] + self.bias[..., None, None]


def calibrate(model: nn.Module, shape: Shape) -> None:
    """Measure the statistics of all batch-norm layers on stand-in images, from torch's global generator."""
    channels, height, width = shape
    coarse = torch.rand(IMAGES, channels, 4, 4)
    images = interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)

    def measure(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, FixedBatchNorm)
        module.mean.copy_(inputs[0].mean((0, 2, 3)))
        module.variance.copy_(inputs[0].var((0, 2, 3)))

    with ExitStack() as hooks, torch.no_grad():
        for module in model.modules():
            if isinstance(module, FixedBatchNorm):
                hooks.enter_context(module.register_forward_pre_hook(measure))
        model(images)
