"""From a model's output back to its input, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from attacker.rgap.chain import Step
from attacker.rgap.equations import LacksRankError, NothingLeakedError, convolution_input, linear_input
from vfl.observation import Tensors


@dataclass(frozen=True)
class Point:
    """What is known between two layers, of one sample."""

    value: Tensor | None
    """None: not known, and not needed before a fully connected layer."""
    slope: Tensor | None
    """How well each value is known: the derivative of the activation that it was inverted from; None: all the same."""
    k: Tensor
    """The gradient of the loss."""


class LayerLacksRankError(Exception):
    """A convolution's equations do not determine its input."""


def go_back(steps: Sequence[Step], parameters: Tensors, gradients: Tensors, end: Point) -> Point:
    """Return what is known at the input of a chain, from what is known at its end; all in float64."""
    point = end
    for step in reversed(steps):
        layer = step.layer
        if layer is None:
            value = None if point.value is None else point.value.reshape(step.inputs)
            slope = None if point.slope is None else point.slope.reshape(step.inputs)
            point = Point(value, slope, point.k.reshape(step.inputs))
        elif isinstance(layer, nn.Linear):
            point = _linear(step, parameters, gradients, point)
        elif isinstance(layer, nn.Conv2d):
            try:
                point = _convolution(step, layer, parameters, gradients, point)
            except LacksRankError as error:
                raise LayerLacksRankError(f"layer {step.name} lacks rank: {error}") from None
        else:
            assert point.value is not None
            value, slope = layer.invert(point.value)
            point = Point(value, slope, point.k * slope)
    return point


def _linear(step: Step, parameters: Tensors, gradients: Tensors, point: Point) -> Point:
    bias = gradients.get(step.parameter("bias"))
    k = point.k if bias is None else bias.double()
    x = linear_input(gradients[step.parameter("weight")].double(), k)
    return Point(x, None, k @ parameters[step.parameter("weight")].double())


def _convolution(step: Step, layer: nn.Conv2d, parameters: Tensors, gradients: Tensors, point: Point) -> Point:
    assert point.value is not None
    if not float(point.k.abs().max()) > 0:
        raise NothingLeakedError
    weight, bias = parameters[step.parameter("weight")].double(), parameters.get(step.parameter("bias"))
    z = point.value if bias is None else point.value - bias.double()[:, None, None]
    slope = torch.ones_like(z) if point.slope is None else point.slope
    own = gradients[step.parameter("weight")].double()
    x = convolution_input(layer, weight, own, step.inputs, z=z, slope=slope, k=point.k)
    back = conv2d_input((1, *step.inputs), weight, point.k[None], layer.stride, layer.padding, layer.dilation)
    return Point(x, None, back[0])
