"""Pictures of a recovery: the real images above the recovered ones, and photographs put together from their tiles."""

from pathlib import Path

import torch
from torch import Tensor

from vfl.datasets import Data, Mosaic
from vfl.files import write_atomically
from vfl.folder.grid import as_image, in_rows, stack


def save_pictures(out: Path, data: Data, x: Tensor) -> None:
    """Write recovered.png, and for each photograph its real and recovered version side by side."""
    if data.kind != "image":
        return
    _save(out / "recovered.png", in_rows(data.x, x), scale=max(1, 48 // data.x.shape[-1]))
    for mosaic in data.mosaics:
        pair = [put_together(mosaic, data.x), put_together(mosaic, x)]
        _save(out / f"photograph_{mosaic.name}.png", stack(pair, dim=2))


def put_together(mosaic: Mosaic, x: Tensor) -> Tensor:
    """Return the picture (channels, height, width) that the samples are tiles of; missing tiles are grey."""
    channels, height, width = x.shape[1:]
    tiles = torch.full((mosaic.rows * mosaic.columns, channels, height, width), 0.5)
    tiles[: mosaic.tiles] = x[mosaic.first : mosaic.first + mosaic.tiles]
    grid = tiles.reshape(mosaic.rows, mosaic.columns, channels, height, width).permute(2, 0, 3, 1, 4)
    return grid.reshape(channels, mosaic.rows * height, mosaic.columns * width)


def _save(path: Path, picture: Tensor, scale: int = 1) -> None:
    image = as_image(picture, scale)
    write_atomically(path, lambda target: image.save(target, format="PNG"))
