"""From a model's output back to its input, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold
from torch.nn.grad import conv2d_input

from attacker.rgap.chain import Step
from vfl.observation import Tensors
from vfl.partition import Shape


@dataclass(frozen=True)
class Point:
    """What is known between two layers, of one sample."""

    value: Tensor | None
    """None: not known, and not needed before a fully connected layer."""
    slope: Tensor | None
    """How well each value is known: the derivative of the activation that it was inverted from; None: all the same."""
    k: Tensor
    """The gradient of the loss."""


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
                point = _convolution(step, layer, parameters, gradients, point=point)
            except LacksRankError as error:
                raise LacksRankError(f"layer {step.name} lacks rank: {error}") from None
        else:
            assert point.value is not None
            value, slope = layer(point.value)
            point = Point(value, slope, point.k * slope)
    return point


def _linear(step: Step, parameters: Tensors, gradients: Tensors, point: Point) -> Point:
    bias = gradients.get(step.parameter("bias"))
    k = point.k if bias is None else bias.double()
    if not float(k.abs().max()) > 0:
        raise NothingLeakedError
    weight = step.parameter("weight")  # its gradient is k x^T (outputs, inputs)
    x = k @ gradients[weight].double() / k.square().sum()
    return Point(x, None, k @ parameters[weight].double())


def _convolution(step: Step, layer: nn.Conv2d, parameters: Tensors, gradients: Tensors, *, point: Point) -> Point:
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


RANK = 1e-6
"""Singular values below this, relative to the largest, count as zero: rounding of float32 gradients is amplified by
their inverse."""


class LacksRankError(Exception):
    """The equations do not determine the input."""


class NothingLeakedError(Exception):
    """Nothing came back to the layer, so its gradients are zero."""


def convolution_input(
    layer: nn.Conv2d, weight: Tensor, weight_gradient: Tensor, shape: Shape, *, z: Tensor, slope: Tensor, k: Tensor
) -> Tensor:
    """Return the input (of this shape) of a convolution by least squares.

    z (outputs, height, width) is what it put out without the bias, known as well as the `slope` of what follows is
    steep; k the gradient there.
    """
    places = patches(layer, shape)
    unknowns = int(torch.tensor(shape).prod())
    sure = slope.flatten() > 0
    outputs = _rows(places, weight.flatten(1), unknowns, per_place=True)[sure]
    # An error of the known activation is an error of z by 1 / slope
    weights, right = outputs * slope.flatten()[sure, None], (z * slope).flatten()[sure]
    gradients = _rows(places, k.flatten(1), unknowns, per_place=False)
    size = gradients.norm()
    if size > 0:
        scale = weights.norm() / size if len(weights) else 1 / size
        weights = torch.cat([weights, gradients * scale])
        right = torch.cat([right, weight_gradient.flatten() * scale])
    return solve(weights, right).reshape(shape)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """Return the least-squares solution of a x = b, or raise LacksRankError."""
    gram = a.T @ a
    values = torch.linalg.eigvalsh(gram)
    rank = int((values > RANK**2 * values[-1]).sum()) if len(a) and values[-1] > 0 else 0
    if rank < a.shape[1]:
        raise LacksRankError(f"{len(a)} equations of rank {rank} for {a.shape[1]} inputs")
    factor = torch.linalg.cholesky(gram)
    x = b.new_zeros(a.shape[1], 1)
    for _ in range(3):  # refinement: the normal equations square the condition number
        x = x + torch.cholesky_solve(a.T @ (b[:, None] - a @ x), factor)
    return x[:, 0]


def patches(layer: nn.Conv2d, shape: Shape) -> Tensor:
    """Return for each weight (inputs x kernel) and output place the number of the input it meets; 0 is the padding."""
    numbers = torch.arange(1, int(torch.tensor(shape).prod()) + 1, dtype=torch.float64).reshape(1, *shape)
    assert not isinstance(layer.padding, str)
    met = unfold(numbers, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return met[0].round().long()


def _rows(places: Tensor, factors: Tensor, unknowns: int, per_place: bool) -> Tensor:
    """Return one equation per output channel and place (factors: weights), or per weight (factors: k)."""
    columns = places.T if per_place else places  # (equations of a channel, terms)
    rows = factors.new_zeros(len(factors), len(columns), unknowns + 1)
    terms = factors[:, None, :].expand(-1, len(columns), -1)
    rows.scatter_add_(2, columns.expand(len(factors), -1, -1), terms)
    return rows[:, :, 1:].reshape(-1, unknowns)
