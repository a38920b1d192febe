"""One round's gradient of a fully connected layer, reduced to its low-rank factors as it arrives."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

OVERSAMPLING = 10
"""Columns that the sketch has beyond the batch: they hold rounding noise only, which is how it is measured."""
NOISE_MARGIN = 10.0
"""How far above the measured noise a singular value must lie: what is kept is known to a tenth at least."""


@dataclass(frozen=True)
class Factors:
    """G^T = left diag(sigma) right^T, the gradient's part above rounding; h lives on the left, v on the right."""

    left: Tensor
    """(inputs, rank), orthonormal columns that span the h of the batch."""
    sigma: Tensor
    """(rank,), descending."""
    right: Tensor
    """(outputs, rank), orthonormal columns that span the v of the batch."""
    bias: Tensor | None
    """(outputs,): the gradient of the bias, the plain sum of the batch's v."""
    size: int
    """How many samples the batch has: gradients are means, so each sample's part is divided by it."""
    noise: float
    """The size of what was left out as noise: the largest singular value that was not kept."""

    @property
    def rank(self) -> int:
        """Return how many directions the gradient shows."""
        return len(self.sigma)


def factorize(weight: Tensor, bias: Tensor | None, size: int) -> Factors:
    """Reduce the weight gradient (outputs, inputs) of a batch of so many samples; all in float64."""
    gradient = weight.detach().to(torch.float64).cpu()
    right, sigma, left, beyond = _svd(gradient, size)
    scale = float(sigma[0]) if len(sigma) else 0.0
    # An exact factorisation (float64 gradients, or few samples) leaves nothing beyond the batch: the
    # arithmetic of the gradient's own type is the floor.
    floor = torch.finfo(weight.dtype).eps * scale
    noise = max(beyond, 0.1 * floor)
    rank = int((sigma[:size] > NOISE_MARGIN * noise).sum()) if scale > 0 else 0
    if rank < min(size, len(sigma)):
        noise = max(noise, float(sigma[rank]))  # a weak sample that was given up blurs the others by its own size
    own_bias = None if bias is None else bias.detach().to(torch.float64).cpu()
    return Factors(
        left[:, :rank].clone(), sigma[:rank].clone(), right[:, :rank].clone(), own_bias, size, noise
    )  # clones: a view would keep the whole sketch alive


def _svd(gradient: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return (right, sigma, left, largest singular value beyond the batch) of the leading part."""
    short = min(gradient.shape)
    width = size + OVERSAMPLING
    if width >= short:
        u, sigma, vh = torch.linalg.svd(gradient, full_matrices=False)
        beyond = float(sigma[size]) if len(sigma) > size else 0.0
        return u, sigma, vh.T, beyond
    # A random sketch of an (almost) rank-`size` matrix spans its columns up to the noise. QR instead of the Gram
    # matrix: squaring would lose what lies under the square root of float64's precision. One power step sharpens it.
    span = torch.linalg.qr(gradient @ _mixing(gradient.shape[1], width)).Q
    basis = torch.linalg.qr(gradient.T @ span).Q  # (inputs, width)
    span, triangle = torch.linalg.qr(gradient @ basis)
    u, sigma, vh = torch.linalg.svd(triangle)
    return span @ u, sigma, basis @ vh.T, float(sigma[size])


@lru_cache(maxsize=8)
def _mixing(inputs: int, width: int) -> Tensor:
    """Return the random columns of the sketch: the same for every round, so drawn once for each shape."""
    return torch.randn(inputs, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
