"""How large gradients are: computed in float64, as squares of small float32 numbers vanish."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from vfl.observation import Tensors


def norm(tensor: Tensor) -> float:
    """Return the L2 norm of one tensor."""
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64))


def rms(tensor: Tensor) -> float:
    """Return the root of the mean square of a tensor's entries."""
    return norm(tensor) / math.sqrt(max(1, tensor.numel()))


def whole_norm(tensors: Iterable[Tensor]) -> float:
    """Return the L2 norm of several tensors taken as one long vector."""
    return math.hypot(*(norm(tensor) for tensor in tensors))


def clipped(gradients: Tensors, limit: float) -> dict[str, Tensor]:
    """Return the gradients, shortened together to an L2 norm of at most `limit`."""
    length = whole_norm(gradients.values())
    if length <= limit:
        return dict(gradients)
    return {name: tensor * (limit / length) for name, tensor in gradients.items()}
