"""The networks of experiments/settings.yaml: as people train them, with dropout and batch norm in training mode."""

import math

from torch import nn

Shape = tuple[int, ...]


def dropout_mlp(shape: Shape, p: float = 0.5) -> nn.Module:
    """A dense layer that sees the slice, ReLU, dropout, another dense layer."""
    dense = [nn.Linear(math.prod(shape), 64), nn.ReLU(), nn.Dropout(p), nn.Linear(64, 10)]
    return nn.Sequential(nn.Flatten(), *dense)


def normed_mlp(shape: Shape) -> nn.Module:
    """A dense layer that sees the slice, batch norm in training mode right after it, ReLU, another dense layer."""
    dense = [nn.Linear(math.prod(shape), 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Flatten(), *dense)


def cnn(shape: Shape, norm: str = "none", p: float = 0.0) -> nn.Module:
    """A convolution, batch norm (none, training or eval), ReLU, a dense layer, ReLU, dropout, another dense layer."""
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, padding=1)]
    layers += [] if norm == "none" else [nn.BatchNorm2d(16).train(norm == "training")]
    layers += [nn.ReLU(), nn.Flatten(), nn.Linear(16 * shape[1] * shape[2], 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(p) if p else nn.Identity(), nn.Linear(64, 10))
