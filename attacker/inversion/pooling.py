"""Max-pooling with a softened gradient: it reaches every cell of a window, the near-winners most.

The true gradient of max-pooling moves the winning cell only, so that a search cannot tell when another cell should have
won: these are the bad local minima of h(x) = h. The value stays that of max-pooling; only the gradient is softened.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Slices = tuple[Any, ...]
Sharpness = float | Tensor
"""One for all samples, or each sample's own (samples,)."""


class SoftenedPooling(TorchFunctionMode):
    """While active, the gradient of every 2-d max-pooling spreads over its window as a softmax of this sharpness."""

    def __init__(self, sharpness: Sharpness) -> None:
        super().__init__()
        self.sharpness = sharpness

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace max-pooling, leave everything else alone."""
        kwargs = kwargs or {}
        if func in (F.max_pool2d, torch.max_pool2d) and not kwargs.get("return_indices"):
            return soft_max_pool2d(self.sharpness, *args, **{k: v for k, v in kwargs.items() if k != "return_indices"})
        return func(*args, **kwargs)


def soft_max_pool2d(
    sharpness: Sharpness,
    input: Tensor,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return torch's max_pool2d of (batch, channels, height, width), with the softened gradient."""
    pooled = F.max_pool2d(input.detach(), kernel_size, stride, padding, dilation, ceil_mode)
    if not (torch.is_grad_enabled() and input.requires_grad):
        return pooled
    kernel, steps, pad, dilate = (pair(v) for v in (kernel_size, stride or kernel_size, padding, dilation))
    reach = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(pooled.shape[-2:], steps, kernel, dilate, strict=True)]
    after = [max(0, r - size - p) for r, size, p in zip(reach, input.shape[-2:], pad, strict=True)]
    padded = F.pad(input, (pad[1], after[1], pad[0], after[0]), value=-torch.inf) if any((*pad, *after)) else input
    cells = [
        (..., slice(i * dilate[0], i * dilate[0] + (pooled.shape[-2] - 1) * steps[0] + 1, steps[0]),
         slice(j * dilate[1], j * dilate[1] + (pooled.shape[-1] - 1) * steps[1] + 1, steps[1]))
        for i in range(kernel[0]) for j in range(kernel[1])
    ]  # fmt: skip
    # relative to each sample's own values: the same sharpness means the same for any layer, model and chunk
    typical = pooled.flatten(1).norm(dim=1).clamp_min(1e-12).view(-1, 1, 1, 1) / pooled[0].numel() ** 0.5
    each = sharpness.view(-1, 1, 1, 1) if isinstance(sharpness, Tensor) else sharpness
    soft: Tensor = _SoftMaxPool.apply(padded, pooled, each / typical, cells)  # type: ignore[no-untyped-call]
    return soft


class _SoftMaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, pooled: Tensor, sharpness: Tensor, cells: list[Slices]) -> Tensor:
        weights = [padded[cell].sub(pooled).mul_(sharpness).exp_() for cell in cells]
        ctx.weights, ctx.total = weights, sum(weights[1:], weights[0])
        ctx.cells, ctx.layout = cells, (padded.shape, padded.stride())
        return pooled

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        share = grads[0] / ctx.total
        spread = torch.empty_strided(*ctx.layout, dtype=share.dtype, device=share.device).zero_()
        for cell, weight in zip(ctx.cells, ctx.weights, strict=True):
            spread[cell].addcmul_(weight, share)
        return spread, None, None, None


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """Return what holds for the height and for the width."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])
