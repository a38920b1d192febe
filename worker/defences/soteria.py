"""Soteria: the entries of the representation that say most about the data are left out of one layer's gradient."""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd import forward_ad

from vfl.errors import RunFailedError
from vfl.models.layers import FullyConnected, fully_connected, representation
from vfl.observation import BOTTOM, Tensors
from worker.defences import Defence, Plan, Played, defences


@defences.register("soteria")
class Soteria(Defence):
    """Prunes r_i with the largest |r_i| / ||d r_i / d x|| from the first FC layer's gradient (Sun et al., CVPR 2021).

    r is what flows into that layer. `mask: sample` takes each sample's own pruned entries out, as the paper has it for
    one sample; `batch` zeroes the same columns for all, as its public code does. All other tensors stay as they are.
    """

    share: float = Field(0.5, ge=0, le=1, description="the share of the representation's entries that is pruned")
    mask: Literal["sample", "batch"] = "sample"
    probes: int = Field(
        2, ge=0, le=10_000, description="random directions that estimate the derivatives' norms; 0: exact"
    )

    def start(self, plan: Plan) -> "_Pruner":  # noqa: ARG002
        """Begin; the layer is looked for in the first round."""
        return _Pruner(self)


class _Pruner:
    def __init__(self, options: Soteria) -> None:
        self._options = options
        self._layer: FullyConnected | None = None

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Return the gradients, the first FC layer's weight without what the pruned entries brought in."""
        if self._layer is None:
            layers = fully_connected(played.model, tuple(played.x.shape[1:]))
            if not layers:
                raise RunFailedError("soteria: this model has no fully connected layer, whose gradient it would prune")
            self._layer = layers[0]
        name = f"{BOTTOM}{self._layer.name}.weight"
        if not len(played.x) or self._options.share == 0.0:
            return gradients
        r, sensitivity = self._look(self._layer, played)
        pruned = chosen(scores(r, sensitivity), self._options.share, self._options.mask == "batch")
        weight = gradients[name]
        if self._options.mask == "batch":
            return {**gradients, name: weight.masked_fill(pruned[0], 0.0)}
        return {**gradients, name: without(weight, r, pruned)}

    def report(self) -> dict[str, Any]:
        return {"layer": self._layer.name if self._layer else None, "mask": self._options.mask}

    def _look(self, layer: FullyConnected, played: Played) -> tuple[Tensor, Tensor]:
        """Return r and the norms of its entries' derivatives by the sample's own features."""
        if layer.sees_data:  # r is x: every entry depends on itself alone
            r = played.x.flatten(1)
            return r, torch.ones_like(r)
        count = played.x[0].numel()
        if self._options.probes == 0:
            eye = torch.eye(count, dtype=played.x.dtype).to(played.x).reshape(count, 1, *played.x.shape[1:])
            directions = [one.expand_as(played.x).contiguous() for one in eye]
        else:
            directions = [played.draws.normal(played.x.shape).to(played.x) for _ in range(self._options.probes)]
        r = squares = torch.zeros(())
        for direction in directions:
            r, along = derivative(played.model, layer.name, played.x, direction)
            squares = squares + along.square()
        return r, squares.sqrt()  # a common factor (1 / probes) changes no order


def derivative(model: nn.Module, layer: str, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Return what flows into a layer, and how fast it changes as x moves in a direction (forward-mode autograd)."""
    with torch.no_grad(), forward_ad.dual_level():
        r, along = forward_ad.unpack_dual(representation(model, layer, forward_ad.make_dual(x, direction)))
        if r.dim() != 2:
            raise RunFailedError(f"soteria: what flows into {layer} is no vector a sample but {tuple(r.shape[1:])}")
        return r, torch.zeros_like(r) if along is None else along


def scores(r: Tensor, sensitivity: Tensor) -> Tensor:
    """Return |r_i| / ||d r_i / d x||: 0 for zero entries, which bring nothing in, infinite for constant ones."""
    return torch.where(r == 0, torch.zeros_like(r), r.abs() / sensitivity)


def chosen(score: Tensor, share: float, together: bool) -> Tensor:
    """Return which entries are pruned: the highest scores of each sample, or of the samples' mean."""
    score = score.mean(dim=0, keepdim=True) if together else score
    places = score.topk(round(share * score.shape[1]), dim=1).indices
    return torch.zeros_like(score, dtype=torch.bool).scatter_(1, places, True)


def without(weight: Tensor, r: Tensor, pruned: Tensor) -> Tensor:
    """Take the pruned entries' part out of G = sum of v_n r_n^T; the v_n follow from G by least squares.

    They are exact where the r_n of a batch are linearly independent. Where samples have the same r they have the same
    pruned entries too, and the sum over them is still right.
    """
    # float64: the Gram matrix squares the condition number of r.
    rows, gradient = r.double(), weight.double()
    v = gradient @ rows.T @ torch.linalg.pinv(rows @ rows.T, rtol=1e-12, hermitian=True)
    left: Tensor = gradient - v @ torch.where(pruned, rows, torch.zeros_like(rows))
    return left.to(weight)
