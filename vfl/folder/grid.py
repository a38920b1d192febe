"""Images laid out in rows, and as PIL has them."""

import torch
from PIL import Image
from torch import Tensor

SHOWN = 24
GAP = 2


def in_rows(*images: Tensor, most: int = SHOWN) -> Tensor:
    """Return some samples, the same of each, in rows below each other: a picture (channels, height, width)."""
    chosen = torch.linspace(0, len(images[0]) - 1, min(most, len(images[0]))).round().long()
    return stack([stack(list(x[chosen]), dim=2) for x in images], dim=1)


def stack(pictures: list[Tensor], dim: int) -> Tensor:
    """Lay pictures side by side (dim 2) or below each other (dim 1) with a white gap."""
    shape = list(pictures[0].shape)
    shape[dim] = GAP
    parts = [part for picture in pictures for part in (picture, torch.ones(shape))][:-1]
    return torch.cat(parts, dim=dim)


def as_image(picture: Tensor, scale: int = 1) -> Image.Image:
    """Return a picture (channels, height, width) in [0, 1] as an image, each pixel `scale` wide."""
    pixels = (picture.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    image = Image.fromarray(pixels.squeeze(-1) if pixels.shape[2] == 1 else pixels)
    return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
