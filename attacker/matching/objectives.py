"""How far guessed gradients are from those that were uploaded: squared, cosine, Gaussian kernel.

Every objective is a formula on a few numbers per problem and layer: squared distances, or inner products. Those are
one custom operation each, whose derivative needs no more than the gradients themselves. What depends on the uploaded
gradients alone is computed once, in `Targets`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

# mypy: disable-error-code="no-untyped-call,misc"


@dataclass(frozen=True)
class Targets:
    """Uploaded gradients of P problems: a tensor (P, entries) for each of L parameters, and what follows from them."""

    tensors: tuple[Tensor, ...]
    squares: Tensor
    """(P, L) squared lengths."""
    spreads: Tensor
    """(P, L) squared distances from the mean entry: entries times variance."""
    depths: Tensor
    """(L,) how deep in the whole network the parameter is, 0 to 1."""

    @classmethod
    def of(cls, tensors: Sequence[Tensor], depths: Tensor) -> "Targets":
        """Take (P, entries) tensors."""
        squares = torch.stack([tensor.square().sum(1) for tensor in tensors], dim=1)
        spreads = torch.stack([(tensor - tensor.mean(1, keepdim=True)).square().sum(1) for tensor in tensors], dim=1)
        return cls(tuple(tensors), squares, spreads, depths)

    @property
    def total(self) -> Tensor:
        """(P,) squared lengths of the whole gradients; 1 where nothing was uploaded but zeros."""
        total = self.squares.sum(1)
        return torch.where(total > 0, total, torch.ones_like(total))


Objective = Callable[[Sequence[Tensor], Targets], Tensor]
"""(gradients (P, entries) each, targets) -> (P,): 0 where they agree."""


def squared(gradients: Sequence[Tensor], targets: Targets) -> Tensor:
    """Squared distance, in units of the uploaded gradient's squared length (DLG's, up to that constant)."""
    return squared_distances(gradients, targets.tensors).sum(1) / targets.total


def cosine(gradients: Sequence[Tensor], targets: Targets) -> Tensor:
    """One minus the cosine of the angle between the whole gradients (Geiping et al. 2020)."""
    own, across = inner_products(gradients, targets.tensors)
    length = (own.sum(1) * targets.total).clamp(min=torch.finfo(own.dtype).tiny).sqrt()
    return 1 - across.sum(1) / length


@dataclass(frozen=True)
class GaussianKernel:
    """SAPAG (Wang et al. 2020): sum over layers of Q_l (1 - exp(-d_l / s_l)), d_l the squared distance of layer l.

    s_l adapts to the layer: `width` times its entries' variance times their number, so that gradients of any size and
    any layer are felt alike. Q_l falls geometrically to `last` at the deepest layer.
    """

    width: float = 1.0
    last: float = 1.0

    def __call__(self, gradients: Sequence[Tensor], targets: Targets) -> Tensor:
        """Return the distance of each problem."""
        weights = self.last**targets.depths
        # A layer whose entries are all alike (or zero) has no variance: its length, or the problem's, stands in
        floor = 1e-6 * torch.maximum(targets.squares, 1e-6 * targets.total[:, None])
        width = self.width * torch.maximum(targets.spreads, floor)
        kernel = 1 - torch.exp(-squared_distances(gradients, targets.tensors) / width)
        return (weights * kernel).sum(1) / weights.sum()


def squared_distances(gradients: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Return (P, L): |g - G|^2 for each problem and parameter."""
    found: Tensor = _SquaredDistances.apply(len(gradients), *gradients, *targets)
    return found


def inner_products(gradients: Sequence[Tensor], targets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return (P, L) twice: <g, g> and <g, G> for each problem and parameter."""
    own, across = _InnerProducts.apply(len(gradients), *gradients, *targets)
    return own, across


class _SquaredDistances(Function):
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensor:
        differences = [g - target for g, target in zip(tensors[:count], tensors[count:], strict=True)]
        ctx.save_for_backward(*differences)
        return torch.stack([_dot(one, one) for one in differences], dim=1)

    @staticmethod
    def backward(ctx: Any, direction: Tensor) -> Any:
        twice = 2 * direction
        # In place, as fresh memory costs more than the product; torch refuses a second backward through changed tensors
        moved = [one.mul_(twice[:, at, None]) for at, one in enumerate(ctx.saved_tensors)]
        return None, *moved, *(None for _ in moved)


class _InnerProducts(Function):
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*tensors)
        ctx.count = count
        gradients, targets = tensors[:count], tensors[count:]
        own = torch.stack([_dot(g, g) for g in gradients], dim=1)
        across = torch.stack([_dot(g, target) for g, target in zip(gradients, targets, strict=True)], dim=1)
        return own, across

    @staticmethod
    def backward(ctx: Any, own: Tensor, across: Tensor) -> Any:
        gradients, targets = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        twice = 2 * own
        moved = [
            torch.addcmul(target * across[:, at, None], g, twice[:, at, None])
            for at, (g, target) in enumerate(zip(gradients, targets, strict=True))
        ]
        return None, *moved, *(None for _ in moved)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return (P,): the inner products of the rows, without a product in memory."""
    return torch.bmm(a.unsqueeze(1), b.unsqueeze(2))[:, 0, 0]
