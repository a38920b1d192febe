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

Slices = tuple[slice, ...]


class SoftenedPooling(TorchFunctionMode):
    """While active, the gradient of every 2-d max-pooling spreads over its window as a softmax of this sharpness."""

    def __init__(self, sharpness: float) -> None:
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
    sharpness: float,
    input: Tensor,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return torch's max_pool2d of (batch, channels, height, width), with the softened gradient."""
    pooled = F.max_pool2d(input.detach(), kernel_size, stride, padding, dilation, ceil_mode)
    kernel, steps, pad, dilate = (_pair(v) for v in (kernel_size, stride or kernel_size, padding, dilation))
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
    soft: Tensor = _SoftMaxPool.apply(padded, pooled, sharpness / typical, cells)  # type: ignore[no-untyped-call]
    return soft


class _SoftMaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Tensor, pooled: Tensor, sharpness: Tensor, cells: list[Any]) -> Tensor:
        weights = torch.stack([padded[cell] for cell in cells])
        weights.sub_(pooled).mul_(sharpness).exp_()
        weights.div_(weights.sum(0))
        ctx.save_for_backward(weights)
        ctx.cells, ctx.layout = cells, (padded.shape, padded.stride())
        return pooled.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (weights,) = ctx.saved_tensors
        spread = torch.empty_strided(*ctx.layout, dtype=weights.dtype, device=weights.device).zero_()
        for cell, weight in zip(ctx.cells, weights, strict=True):
            spread[cell] += weight * grads[0]
        return spread, None, None, None


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
