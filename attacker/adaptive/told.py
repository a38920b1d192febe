"""What a defence left of a gradient, for an attacker who knows its kind: which true gradients fit the upload.

Each kind reads a limit off every tensor as it arrives (how small an entry was dropped, how coarse the grid is), and
`consistent` then turns a prediction of the true gradient into the nearest one that would have been uploaded like this.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

Name = Literal["noise", "dp", "prune", "quantize", "clip", "fake_gradients"]


class Told(BaseModel):
    """A defence as the attacker may have learnt of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    bits: int | None = Field(None, ge=1, le=16, description="of quantize: 1 is sign times mean; else read off the wire")
    rounding: Literal["nearest", "stochastic"] = Field("nearest", description="of quantize")

    @model_validator(mode="after")
    def _consistent(self) -> "Told":
        if self.name != "quantize" and self.model_fields_set & {"bits", "rounding"}:
            raise ValueError(f"bits and rounding belong to quantize, not to {self.name}")
        return self

    @property
    def kind(self) -> "Kind | None":
        """Return how to go on from the uploads; None where the mean over rounds is all there is to do."""
        if self.name == "quantize" and self.bits != 1:  # signs alone: told and untold come to the same (measured)
            return KINDS["quantize" if self.rounding == "nearest" else "quantize stochastic"]
        return KINDS.get(self.name)


@dataclass(frozen=True)
class Kind:
    """What can be undone of one kind of defence."""

    limit: Callable[[Tensor], float]
    """One number of an uploaded tensor."""
    consistent: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Of uploads, predictions (rounds, entries) and limits (rounds, 1): the nearest gradients that explain uploads."""
    first: Callable[[Tensor], Tensor] = lambda upload: upload
    """The first guess at gradients (rounds, entries) from uploads."""
    by_order: bool = False
    """Whether the order of the uploaded entries is all that counts: `consistent` then gets their places in order."""
    keeps_scale: bool = True
    """Whether entries keep their size; else only the tensor's root mean square, which is then its limit, says it."""


def smallest_sent(tensor: Tensor) -> float:
    """Return the smallest magnitude that was sent: what was not sent is smaller."""
    sent = tensor[tensor != 0].abs()
    return float(sent.min()) if len(sent) else 0.0


def not_sent_is_small(upload: Tensor, predicted: Tensor, limit: Tensor) -> Tensor:
    """Keep what was sent; of the rest believe the prediction, up to the smallest magnitude that was sent."""
    return torch.where(upload != 0, upload, predicted.clamp(-limit, limit))


def step_of(tensor: Tensor) -> float:
    """Return the distance of neighbouring values on the grid."""
    values = tensor.flatten().unique().double()
    gaps = values.diff()
    gaps = gaps[gaps > 1e-4 * gaps.max()] if len(gaps) else gaps  # the rounding of the grid's own arithmetic
    return float(gaps.min()) if len(gaps) else 0.0


def within(share: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Believe the prediction as far as it is rounded to the uploaded value, so many steps away at most."""
    return lambda upload, predicted, step: predicted.clamp(upload - share * step, upload + share * step)


def root_mean_square(tensor: Tensor) -> float:
    """Return the size of a typical entry."""
    return float(tensor.double().square().mean().sqrt())


def by_rank(places: Tensor, predicted: Tensor, limit: Tensor) -> Tensor:  # noqa: ARG001
    """Give the predicted values, sorted, to the places of the uploaded ones in ascending order."""
    return torch.empty_like(predicted).scatter_(1, places, predicted.sort(1).values)


def laplace(upload: Tensor) -> Tensor:
    """Return what the order says of gradients with tails: Laplace quantiles, nearer to most than a Gaussian's."""
    count = upload.shape[1]
    share = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    values = torch.where(share < 0.5, (2 * share).log(), -(2 - 2 * share).log()) / 2**0.5
    return (
        by_rank(upload.argsort(1), values.expand(len(upload), -1), upload)
        * upload.square().mean(1, keepdim=True).sqrt()
    )


KINDS = {
    "prune": Kind(smallest_sent, not_sent_is_small),
    "quantize": Kind(step_of, within(0.5)),
    "quantize stochastic": Kind(step_of, within(1.0)),
    "fake_gradients": Kind(root_mean_square, by_rank, laplace, by_order=True, keeps_scale=False),
}
