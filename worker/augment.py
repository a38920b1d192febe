"""Augmentation: what a worker does to its slices, at random, each time before it trains on them."""

import torch
from torch import Tensor

from vfl.optimisers.training import Augment


def augmented(x: Tensor, how: Augment) -> Tensor:
    """Return slices (batch, …) as this round trains on them, by torch's global generator."""
    if how.flip and x.dim() == 4:
        x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
    if how.shift and x.dim() == 4:
        x = _shifted(x, torch.randint(-how.shift, how.shift + 1, (len(x), 2)))
    if how.noise:
        noisy = x + how.noise * torch.randn(x.shape)
        x = noisy.clamp(0, 1) if x.dim() == 4 else noisy
    return x


def _shifted(x: Tensor, by: Tensor) -> Tensor:
    """Return images moved by so many pixels down and to the right; what comes in from outside is black."""
    most = int(by.abs().max())
    height, width = x.shape[2:]
    wide = torch.nn.functional.pad(x, (most, most, most, most))
    corners = [(most - down, most - right) for down, right in by.tolist()]
    cut = [one[:, top : top + height, left : left + width] for one, (top, left) in zip(wide, corners, strict=True)]
    return torch.stack(cut)
