"""A layer's input from linear equations: what its outputs were, and what its gradient is."""

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from vfl.partition import Shape

RANK = 1e-6
"""Singular values below this, relative to the largest, count as zero: rounding of float32 gradients is amplified by
their inverse."""


class LacksRankError(Exception):
    """The equations do not determine the input."""

    def __init__(self, rank: int, equations: int, unknowns: int) -> None:
        super().__init__(f"{equations} equations of rank {rank} for {unknowns} inputs")


class NothingLeakedError(Exception):
    """Nothing came back to the layer, so its gradients are zero."""


def linear_input(weight_gradient: Tensor, k: Tensor) -> Tensor:
    """Return the input of a fully connected layer from its gradient k x^T (outputs, inputs)."""
    if not float(k.abs().max()) > 0:
        raise NothingLeakedError
    x: Tensor = k @ weight_gradient / k.square().sum()
    return x


def convolution_input(
    layer: nn.Conv2d, weight: Tensor, weight_gradient: Tensor, shape: Shape, *, z: Tensor, slope: Tensor, k: Tensor
) -> Tensor:
    """Return the input (of this shape) of a convolution by least squares.

    z (outputs, height, width) is what it put out without the bias, known as well as the `slope` of what follows is
    steep; k the gradient there.
    """
    places = patches(layer, shape)
    unknowns = int(torch.tensor(shape).prod())
    sure = slope.flatten() > 0
    outputs = _rows(places, weight.flatten(1), unknowns, per_place=True)[sure]
    # An error of the known activation is an error of z by 1 / slope
    weights, right = outputs * slope.flatten()[sure, None], (z * slope).flatten()[sure]
    gradients = _rows(places, k.flatten(1), unknowns, per_place=False)
    size = gradients.norm()
    if size > 0:
        scale = weights.norm() / size if len(weights) else 1 / size
        weights = torch.cat([weights, gradients * scale])
        right = torch.cat([right, weight_gradient.flatten() * scale])
    return solve(weights, right).reshape(shape)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """Return the least-squares solution of a x = b, or raise LacksRankError."""
    gram = a.T @ a
    values = torch.linalg.eigvalsh(gram)
    rank = int((values > RANK**2 * values[-1]).sum()) if len(a) and values[-1] > 0 else 0
    if rank < a.shape[1]:
        raise LacksRankError(rank, len(a), a.shape[1])
    factor = torch.linalg.cholesky(gram)
    x = b.new_zeros(a.shape[1], 1)
    for _ in range(3):  # refinement: the normal equations square the condition number
        x = x + torch.cholesky_solve(a.T @ (b[:, None] - a @ x), factor)
    return x[:, 0]


def patches(layer: nn.Conv2d, shape: Shape) -> Tensor:
    """Return for each weight (inputs x kernel) and output place the number of the input it meets; 0 is the padding."""
    numbers = torch.arange(1, int(torch.tensor(shape).prod()) + 1, dtype=torch.float64).reshape(1, *shape)
    assert not isinstance(layer.padding, str)
    met = unfold(numbers, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return met[0].round().long()


def _rows(places: Tensor, factors: Tensor, unknowns: int, per_place: bool) -> Tensor:
    """Return one equation per output channel and place (factors: weights), or per weight (factors: k)."""
    columns = places.T if per_place else places  # (equations of a channel, terms)
    rows = factors.new_zeros(len(factors), len(columns), unknowns + 1)
    terms = factors[:, None, :].expand(-1, len(columns), -1)
    rows.scatter_add_(2, columns.expand(len(factors), -1, -1), terms)
    return rows[:, :, 1:].reshape(-1, unknowns)
