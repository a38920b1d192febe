"""Layers whose gradients are cheap to differentiate once more, put in place of torch's while a guess runs forward.

Gradient matching differentiates parameter gradients with respect to the data, never with respect to the parameters.
torch's own rules do not know that: the second derivative of a convolution is a convolution with the whole image as its
kernel. Here the parameters count as constants in the second derivative, and all of its terms are plain convolutions.

`Rules(each=True)` takes parameters with a leading axis, one copy a sample (an expanded view: no memory), and gives
every sample its own gradient from one pass over all of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import fold, linear, unfold
from torch.overrides import TorchFunctionMode

from attacker.matching.pooling import pooled

# mypy: disable-error-code="no-untyped-call,misc"


SMALL = 4_000_000
"""Products in a convolution on the CPU up to which torch's plain routine is faster than its fast one."""
NARROW = 4
"""Input channels up to which it is faster at the gradient of the input, whatever the size."""


@dataclass
class Phase:
    """Whether the parameters' gradients are being computed, or what comes after: then only the data's count."""

    first: bool = True


@dataclass(frozen=True)
class Geometry:
    """How a convolution slides over its input."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class Rules(TorchFunctionMode):
    """Sends convolutions (and, for `each`, dense layers) through the rules below."""

    def __init__(self, phase: Phase, data: Iterable[Tensor], each: bool) -> None:
        super().__init__()
        self._phase, self._each = phase, each
        self._data = {id(tensor) for tensor in data}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.conv2d and not kwargs and len(args) == 7 and not isinstance(args[4], str):
            x, weight, bias, stride, padding, dilation, groups = args
            how = Geometry(tuple(stride), tuple(padding), tuple(dilation), groups)
            return _Convolution.apply(x, weight, bias, how, self._phase, id(x) in self._data, self._each)
        if self._each and func is linear and not kwargs:
            x, weight, bias = (*args, None)[:3]
            return _EachDense.apply(x, weight, bias, self._phase)
        return pooled(func, args, kwargs or {})


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, how: Geometry) -> Tensor:
    if _small(x.shape, weight, how):
        found: Tensor = torch.ops.aten._slow_conv2d_forward(x, weight, weight.shape[2:], bias, how.stride, how.padding)
        return found
    return torch.conv2d(x, weight, bias, how.stride, how.padding, how.dilation, how.groups)


def _to_input(gradient: Tensor, shape: torch.Size, weight: Tensor, how: Geometry) -> Tensor:
    return _backward(gradient, gradient.new_empty(1).expand(shape), weight, how, mask=[True, False, False])[0]


def _backward(gradient: Tensor, x: Tensor, weight: Tensor, how: Geometry, *, mask: list[bool]) -> list[Tensor]:
    done: list[Tensor]
    narrow = mask[0] and weight.shape[1] <= NARROW and _plain(weight, how)
    if narrow or _small(x.shape, weight, how):
        done = torch.ops.aten._slow_conv2d_backward.output_mask(
            gradient, x, weight, weight.shape[2:], how.stride, how.padding, mask
        )
    else:
        done = torch.ops.aten.convolution_backward(
            gradient, x, weight, None, how.stride, how.padding, how.dilation, False, [0, 0], how.groups, mask
        )
    return done


def _small(shape: torch.Size, weight: Tensor, how: Geometry) -> bool:
    """Tell where setting up the fast routine takes longer than the slow one: three to five times, as measured."""
    pixels = shape[0] * shape[2] * shape[3] // (how.stride[0] * how.stride[1])
    return pixels * weight.numel() < SMALL and _plain(weight, how)


def _plain(weight: Tensor, how: Geometry) -> bool:
    return weight.device.type == "cpu" and how.groups == 1 and set(how.dilation) == {1}


class _Convolution(Function):
    """A convolution with parameters that all samples share; with `each`, every sample gets their gradient alone."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: Geometry, phase: Phase, data: bool, each: bool
    ) -> Tensor:
        if each and how.groups != 1:
            raise NotImplementedError("a grouped convolution for each sample")
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.phase, ctx.bias, ctx.data, ctx.each = how, phase, bias is not None, data, each
        shared, shift = (weight[0], None if bias is None else bias[0]) if each else (weight, bias)
        return _forward(x, shared, shift, how)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        shared = (weight[0] if ctx.each else weight).detach()
        if not ctx.phase.first:
            return _to_input(gradient, x.shape, shared, ctx.how), None, None, None, None, None, None
        to_x = None if ctx.data else _InputGradient.apply(gradient, shared, x.shape, ctx.how)
        if ctx.each:
            to_weight = _EachWeightGradient.apply(x, gradient, shared.shape, ctx.how)
        else:
            to_weight = _WeightGradient.apply(x, gradient, shared, ctx.how)
        to_bias = gradient.sum((2, 3) if ctx.each else (0, 2, 3)) if ctx.bias else None
        return to_x, to_weight, to_bias, None, None, None, None


class _InputGradient(Function):
    """The gradient at a convolution's input, as a function of the one at its output."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, weight: Tensor, shape: torch.Size, how: Geometry) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.how = how
        return _to_input(gradient, shape, weight, how)

    @staticmethod
    def backward(ctx: Any, direction: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return _forward(direction, weight, None, ctx.how), None, None, None


class _WeightGradient(Function):
    """The gradient of a convolution's weight, as a function of its input and of the gradient at its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor, weight: Tensor, how: Geometry) -> Tensor:
        ctx.save_for_backward(x, gradient)
        ctx.how = how
        return _backward(gradient, x, weight, how, mask=[False, True, False])[1]

    @staticmethod
    def backward(ctx: Any, direction: Tensor) -> Any:
        x, gradient = ctx.saved_tensors
        return (_to_input(gradient, x.shape, direction, ctx.how), _forward(x, direction, None, ctx.how), None, None)


class _EachWeightGradient(Function):
    """Each sample's gradient of a convolution's weight: the input's patches times the gradient at the output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor, shape: torch.Size, how: Geometry) -> Tensor:
        patches = unfold(x, shape[2:], how.dilation, how.padding, how.stride)
        flat = gradient.flatten(2)
        ctx.save_for_backward(patches, flat)
        ctx.how, ctx.sizes, ctx.shape = how, (tuple(x.shape[2:]), tuple(shape[2:])), gradient.shape
        return torch.bmm(flat, patches.transpose(1, 2)).reshape(len(x), *shape)

    @staticmethod
    def backward(ctx: Any, direction: Tensor) -> Any:
        patches, flat = ctx.saved_tensors
        matrix = direction.flatten(2)
        image, kernel = ctx.sizes
        to_patches = torch.bmm(matrix.transpose(1, 2), flat)
        to_x = fold(to_patches, image, kernel, ctx.how.dilation, ctx.how.padding, ctx.how.stride)
        return to_x, torch.bmm(matrix, patches).reshape(ctx.shape), None, None


class _EachDense(Function):
    """A dense layer that gives the gradient of its parameters for each sample."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, phase: Phase) -> Tensor:
        if x.dim() != 2:
            raise NotImplementedError("a dense layer on more than a vector for each sample")
        ctx.save_for_backward(x, weight)
        ctx.phase, ctx.bias = phase, bias is not None
        return linear(x, weight[0], None if bias is None else bias[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        to_x = gradient @ weight[0].detach()
        if not ctx.phase.first:
            return to_x, None, None, None
        to_weight = torch.bmm(gradient.unsqueeze(2), x.unsqueeze(1))
        return to_x, to_weight, gradient if ctx.bias else None, None
