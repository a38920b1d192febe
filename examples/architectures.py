"""Networks as people bring them: plain functions that return a torch module for slices of a shape.

`model: {name: examples.architectures:tanh_cnn}` in a config, from the folder that holds examples/, is all it takes.
`experiments/architectures.yaml` runs them all, docs/models.md says how much each gives away.
"""

import math

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]


def gelu_mlp(shape: Shape, width: int = 64) -> nn.Module:
    """Fully connected layers with GELU; the first one sees the slice itself."""
    return nn.Sequential(nn.Flatten(), *_head(math.prod(shape), width, nn.GELU()))


def dropout_mlp(shape: Shape, width: int = 64, p: float = 0.3) -> nn.Module:
    """Fully connected layers with dropout after the first, which sees the slice itself."""
    return nn.Sequential(nn.Flatten(), *_head(math.prod(shape), width, nn.Sequential(nn.ReLU(), nn.Dropout(p))))


def layernorm_mlp(shape: Shape, width: int = 64) -> nn.Module:
    """Layer norm over the slice, then fully connected layers: its mean and its contrast never reach them."""
    features = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(features), *_head(features, width, nn.ReLU()))


def residual_mlp(shape: Shape, width: int = 64) -> nn.Module:
    """A residual block of two fully connected layers: the slice also goes past them."""
    features = math.prod(shape)
    block = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, features))
    return nn.Sequential(nn.Flatten(), Residual(block), nn.ReLU(), nn.Linear(features, 10))


def tanh_cnn(shape: Shape, channels: int = 32) -> nn.Module:
    """Two convolutions with tanh and a stride, no zeros anywhere."""
    stem = [nn.Conv2d(shape[0], channels, 3, padding=1), nn.Tanh(), *_halving(channels), nn.Tanh()]
    return _flattened(stem, shape)


def avgpool_cnn(shape: Shape, channels: int = 64) -> nn.Module:
    """Two convolutions with ReLU, each with average pooling after it."""
    stem = [nn.Conv2d(shape[0], channels // 2, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2, ceil_mode=True)]
    stem += [nn.Conv2d(channels // 2, channels, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2, ceil_mode=True)]
    return _flattened(stem, shape)


def gap_cnn(shape: Shape, channels: int = 16) -> nn.Module:
    """Two convolutions, then the mean of each channel over the whole slice (global average pooling)."""
    stem = [nn.Conv2d(shape[0], channels, 3, padding=1), nn.ReLU(), *_halving(channels), nn.ReLU()]
    return _flattened([*stem, nn.AdaptiveAvgPool2d(1)], shape)


def groupnorm_cnn(shape: Shape, channels: int = 32) -> nn.Module:
    """Two convolutions with group norm and ReLU."""
    stem = [nn.Conv2d(shape[0], channels, 3, padding=1), nn.GroupNorm(8, channels), nn.ReLU()]
    return _flattened([*stem, *_halving(channels), nn.GroupNorm(8, channels), nn.ReLU()], shape)


def batchnorm_cnn(shape: Shape, channels: int = 32, training: bool = False) -> nn.Module:
    """Two convolutions with batch norm; in eval mode its statistics are constants of the model."""
    stem = [nn.Conv2d(shape[0], channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    return _flattened([*stem, *_halving(channels), nn.BatchNorm2d(channels), nn.ReLU()], shape).train(training)


def residual_cnn(shape: Shape, channels: int = 32) -> nn.Module:
    """A residual block between two convolutions."""
    block = nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)
    )
    stem = [nn.Conv2d(shape[0], channels, 3, padding=1), nn.ReLU(), Residual(block), nn.ReLU()]
    return _flattened([*stem, *_halving(channels), nn.ReLU()], shape)


def no_bias_cnn(shape: Shape, channels: int = 32, convolutions: bool = False) -> nn.Module:
    """Two convolutions and fully connected layers without a bias; `convolutions` gives those one."""
    stem = [nn.Conv2d(shape[0], channels, 3, padding=1, bias=convolutions), nn.ReLU()]
    stem += [nn.Conv2d(channels, channels, 3, stride=2, padding=1, bias=convolutions), nn.ReLU()]
    return _flattened(stem, shape, bias=False)


def resnet18_stem(shape: Shape) -> nn.Module:
    """He et al. 2016: torchvision's ResNet-18 up to its first stage, frozen batch norm, then fully connected."""
    import vfl.torchvision_ops  # noqa: F401  (first: it makes the next import work beside a CPU build of torch)
    from torchvision.models import resnet18  # isort: skip

    whole = resnet18(weights=None)
    whole.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
    return _flattened([whole.conv1, whole.bn1, whole.relu, whole.maxpool, whole.layer1], shape).eval()


def small_transformer(shape: Shape, tokens: int = 8, width: int = 32) -> nn.Module:
    """A fully connected embedding of the whole slice into tokens, then a transformer layer (Vaswani et al. 2017)."""
    embedding = nn.Linear(math.prod(shape), tokens * width)
    split = nn.Unflatten(1, (tokens, width))
    return nn.Sequential(nn.Flatten(), embedding, split, _encoder(width), nn.Flatten(), nn.Linear(tokens * width, 10))


def patch_transformer(shape: Shape, patch: int = 4, width: int = 64) -> nn.Module:
    """Patches as tokens through a transformer layer (Dosovitskiy et al. 2021); the first dense layer comes after it."""
    tokens = shape[1] // patch * (shape[2] // patch)
    stem = [Patches(patch), nn.Linear(shape[0] * patch**2, width), Places(tokens, width), _encoder(width)]
    return _flattened(stem, shape)


class Residual(nn.Module):
    """What goes in plus what a block makes of it."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return x + self.block(x)


class Patches(nn.Module):
    """An image as rows of its patches."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.unfold = nn.Unfold(size, stride=size)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, patches, values)."""
        return self.unfold(x).transpose(1, 2)


class Places(nn.Module):
    """Adds to each token a vector that says where it is."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.place = nn.Parameter(0.02 * torch.randn(tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens with their places."""
        return x + self.place


def _encoder(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True)


def _halving(channels: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, channels, 3, stride=2, padding=1)]


def _head(features: int, width: int, activation: nn.Module, bias: bool = True) -> list[nn.Module]:
    return [nn.Linear(features, width, bias=bias), activation, nn.Linear(width, 10, bias=bias)]


def _flattened(stem: list[nn.Module], shape: Shape, bias: bool = True) -> nn.Module:
    """Put fully connected layers after a stem, whatever it puts out."""
    body = nn.Sequential(*stem, nn.Flatten())
    with torch.no_grad():
        features = body.eval()(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(body.train(), *_head(features, 64, nn.ReLU(), bias))
