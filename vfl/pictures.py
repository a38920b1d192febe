"""Pictures of a recovery: the real images above the recovered ones, and photographs put together from their tiles."""

from pathlib import Path

import torch
from torch import Tensor

from vfl.datasets import Data, Mosaic
from vfl.results import write_atomically

SHOWN = 24
GAP = 2


def save_pictures(out: Path, data: Data, x: Tensor) -> None:
    """Write recovered.png, and for each photograph its real and recovered version side by side."""
    if data.kind != "image":
        return
    chosen = torch.linspace(0, len(x) - 1, min(SHOWN, len(x))).round().long()
    rows = [_row(data.x[chosen]), _row(x[chosen])]
    _save(out / "recovered.png", _stack(rows, dim=1), scale=max(1, 48 // data.x.shape[-1]))
    for mosaic in data.mosaics:
        pair = [put_together(mosaic, data.x), put_together(mosaic, x)]
        _save(out / f"photograph_{mosaic.name}.png", _stack(pair, dim=2))


def put_together(mosaic: Mosaic, x: Tensor) -> Tensor:
    """Return the picture (channels, height, width) that the samples are tiles of; missing tiles are grey."""
    channels, height, width = x.shape[1:]
    tiles = torch.full((mosaic.rows * mosaic.columns, channels, height, width), 0.5)
    tiles[: mosaic.tiles] = x[mosaic.first : mosaic.first + mosaic.tiles]
    grid = tiles.reshape(mosaic.rows, mosaic.columns, channels, height, width).permute(2, 0, 3, 1, 4)
    return grid.reshape(channels, mosaic.rows * height, mosaic.columns * width)


def _row(x: Tensor) -> Tensor:
    return _stack(list(x), dim=2)


def _stack(pictures: list[Tensor], dim: int) -> Tensor:
    """Lay pictures side by side (dim 2) or below each other (dim 1) with a white gap."""
    shape = list(pictures[0].shape)
    shape[dim] = GAP
    parts = [part for picture in pictures for part in (picture, torch.ones(shape))][:-1]
    return torch.cat(parts, dim=dim)


def _save(path: Path, picture: Tensor, scale: int = 1) -> None:
    from PIL import Image

    pixels = (picture.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    image = Image.fromarray(pixels.squeeze(-1) if pixels.shape[2] == 1 else pixels)
    if scale > 1:
        image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    write_atomically(path, lambda target: image.save(target, format="PNG"))
