"""Convolutions whose values are exact and whose gradient is computed in bfloat16, on processors that are made for it.

The gradient is then off by a few thousandths of itself, however small it gets: a direction of search, which the exact
value of the residual judges at every step, loses nothing by that.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attacker.inversion.pooling import pair

Size = int | tuple[int, int]


class CoarseGradients(TorchFunctionMode):
    """While active, 2-d convolutions with fixed weights have coarse gradients, where these are faster."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace convolutions of images, leave everything else alone."""
        if func is torch.conv2d and faster():
            return coarse_conv2d(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@cache
def faster() -> bool:
    """Tell whether this processor multiplies in bfloat16."""
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    return capabilities is not None and bool(capabilities().get("avx512_bf16"))


def coarse_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Return torch's conv2d; its gradient is coarse where it is one of float32 images on the CPU by the input alone."""
    learns = weight.requires_grad or (bias is not None and bias.requires_grad)
    here = input.dtype == torch.float32 and input.device.type == "cpu" and input.dim() == 4
    if learns or not here or isinstance(padding, str):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    how = (pair(stride), pair(padding), pair(dilation), groups)
    result: Tensor = _Convolution.apply(input, weight, bias, how)  # type: ignore[no-untyped-call]
    return result


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, how: Any) -> Tensor:
        ctx.weight, ctx.how, ctx.shape = weight, how, input.shape
        return torch.conv2d(input, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        stride, padding, dilation, groups = ctx.how
        shape_alone = grads[0].new_empty(1, dtype=torch.bfloat16).expand(ctx.shape)
        by_input = torch.ops.aten.convolution_backward(
            grads[0].bfloat16(), shape_alone, ctx.weight.bfloat16(), None, stride, padding, dilation, False, (0, 0),
            groups, (True, False, False),
        )[0]  # fmt: skip
        return by_input.float(), None, None, None
