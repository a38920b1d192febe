"""A first estimate of images from their representations: a linear regression that the attack fits on images of its own.

The bottom model is known, so the attack runs images through it that it makes up: shapes that cover each other, soft or
sharp, shaded and textured, as things do in pictures. What is linear in the way back from h to x is learnt from them; it
needs no image of any data set.
"""

import copy
import math

import torch
from torch import Tensor, nn

from attacker.inversion.objective import lay_out
from vfl.models.layers import representation
from vfl.seeds import generator

IMAGES = 600
LARGEST = 4096
"""Values of an image beyond which no regression is fitted: it would take longer than it saves."""
RIDGE = 0.1
"""Of the regression, relative to the mean square of a representation."""
AT_ONCE = 32


def estimates(model: nn.Module, layer: str, targets: Tensor, shape: tuple[int, ...], *, seed: int) -> Tensor | None:
    """Return an estimate (targets, *shape) for each target; None for what is no image, or too large a one."""
    if len(shape) != 3 or math.prod(shape) > LARGEST:
        return None
    own = made_up(IMAGES, shape, generator(seed, "inversion estimate"))
    model = copy.deepcopy(model)
    own = own.to(memory_format=lay_out(model, layer, own))
    h, y = _representations(model, layer, own), own.flatten(1)
    middle_h, middle_y = h.mean(0), y.mean(0)
    apart = h - middle_h
    products = apart @ apart.T
    products.diagonal().add_(RIDGE * products.diagonal().mean())
    back = apart.T @ torch.linalg.solve(products, y - middle_y)
    first = middle_y + (targets - middle_h) @ back
    # once more, for what the first estimate does not explain
    missing = targets - _representations(model, layer, first.view(-1, *shape))
    second: Tensor = first + missing @ back
    return second.view(-1, *shape).clamp(0, 1)


def _representations(model: nn.Module, layer: str, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([representation(model, layer, some) for some in x.split(AT_ONCE)])


SHAPES = 6


def made_up(number: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Return images of shaded ellipses that cover each other, with a texture whose spectrum is that of nature."""
    channels, height, width = shape
    size = max(height, width)
    down, across = torch.arange(height)[:, None] + 0.5, torch.arange(width)[None] + 0.5

    def draw(*sizes: int, normal: bool = False) -> Tensor:
        return (torch.randn if normal else torch.rand)(number, *sizes, 1, 1, generator=random)

    def colours() -> Tensor:
        return (draw(1) + 0.15 * draw(channels, normal=True) * (channels > 1)).clamp(0, 1)

    images = colours().expand(number, *shape)
    for _ in range(SHAPES):
        x, y = across - (1.4 * draw(1) - 0.2) * size, down - (1.4 * draw(1) - 0.2) * size
        turn, longer = 2 * torch.pi * draw(1), draw(1, normal=True).exp()
        along, beside = x * turn.cos() + y * turn.sin(), y * turn.cos() - x * turn.sin()
        inside = 0.7 * size * draw(1) - (along.square() * longer + beside.square() / longer).sqrt()
        cover = (inside / (0.1 + 1.5 * draw(1))).sigmoid()
        images = images + cover * (colours() + 0.2 * draw(1, normal=True) * along / size - images)
    return (images + 0.3 * draw(1).square() * _texture(number, shape, random)).clamp(0, 1)


def _texture(number: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Return noise whose amplitude falls with the frequency, as in photographs, the colours mostly alike."""
    channels, height, width = shape
    noise = torch.randn(number, 1, 2 * height, 2 * width, generator=random)
    noise = noise + 0.3 * torch.randn(number, channels, 2 * height, 2 * width, generator=random)
    frequency = torch.fft.fftfreq(2 * height)[:, None].hypot(torch.fft.rfftfreq(2 * width)[None])
    frequency[0, 0] = 1
    spectrum = torch.fft.rfft2(noise) / frequency
    texture: Tensor = torch.fft.irfft2(spectrum, s=noise.shape[-2:])[..., :height, :width]
    return texture / texture.std((1, 2, 3), keepdim=True).clamp_min(1e-12)
