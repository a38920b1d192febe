"""Small random ReLU networks whose gradient, and every sample's h and v, are known."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.exact.rays import Found


@dataclass(frozen=True)
class Case:
    """A batch's gradient as float32 computes it, the truth in it, and the network after the layer."""

    weight: Tensor
    bias: Tensor
    h: Tensor
    v: Tensor
    cut_off: Callable[[Tensor], Tensor]
    span: Callable[[Tensor], Tensor]


def case(samples: int, *, seed: int, inputs: int = 300, outputs: int = 96, dead: int = 0) -> Case:
    """h = ReLU of something dense, then a layer, its ReLU, and a layer of 5 outputs with any gradient from above."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    h = torch.relu(normal(samples, inputs) - 0.2)
    w, b, w2 = normal(outputs, inputs) / inputs**0.5, 0.1 * normal(outputs), normal(5, outputs)
    b[:dead] = -100.0
    return backward(h, w, b, (w2, normal(samples, 5)))


def backward(h: Tensor, w: Tensor, b: Tensor, above: tuple[Tensor, Tensor]) -> Case:
    """The gradients of the layer (w, b) at h; `above` has the next layer and the gradients at its outputs."""
    w2, answers = above
    v = (answers @ w2) * (h @ w.T + b > 0) / len(h)
    wide, offset, second = w.double(), b.double(), w2.double()

    def cut_off(x: Tensor) -> Tensor:
        return x @ wide.T + offset < 0

    def span(x: Tensor) -> Tensor:
        return second.T * ~cut_off(x)[:, :, None]

    return Case(v.T @ h, v.sum(dim=0), h.double(), v.double(), cut_off, span)


def right(found: Found, truth: Tensor, within: float = 1e-4) -> Tensor:
    """Tell which rows of the truth were found, true length included."""
    if not len(found.h):
        return torch.zeros(len(truth), dtype=torch.bool)
    return torch.cdist(truth, found.h).min(dim=1).values < within * truth.norm(dim=1)


def wrong_yet_certain(found: Found, truth: Tensor, within: float = 1e-4) -> int:
    """Count rows that are called certain and are none of the truth."""
    certain = found.h[found.certain]
    return (
        int((torch.cdist(certain, truth).min(dim=1).values > within * certain.norm(dim=1)).sum()) if len(certain) else 0
    )
