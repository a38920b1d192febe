"""Quantisation: each tensor is uploaded in few different values."""

from typing import ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from vfl.config.places import PLACES, Place
from vfl.observation import Tensors
from worker.defences import Defence, Played, Swapped, defences
from worker.keys import Draws


@defences.register("quantize")
class Quantize(Defence):
    """Rounds each tensor to few values (QSGD, Alistarh et al. 2017; one bit: signs, Bernstein et al. 2018).

    With k > 1 bits the values are 2^k - 1 equally spaced ones from -m to m, m the tensor's largest magnitude; zero is
    one of them. With one bit every entry becomes its sign times the tensor's mean magnitude; exact zeros stay zero.
    """

    bits: int = Field(8, ge=1, le=16)
    places: ClassVar[frozenset[Place]] = frozenset(PLACES)
    stochastic: bool = Field(False, description="round up or down at random, right in the mean, instead of to nearest")

    @model_validator(mode="after")
    def _possible(self) -> "Quantize":
        if self.stochastic and self.bits == 1:
            raise ValueError("stochastic rounding needs 2 bits or more")
        return self

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Return the gradients in few values."""
        draws = played.draws if self.stochastic else None
        return {name: quantized(tensor, self.bits, draws) for name, tensor in gradients.items()}

    def exchange(self, tensor: Tensor, swapped: Swapped) -> Tensor:
        """Return a batch's outputs or answers in few values."""
        return quantized(tensor, self.bits, swapped.draws if self.stochastic else None)


def quantized(tensor: Tensor, bits: int, draws: Draws | None) -> Tensor:
    """Return a tensor in 2^bits - 1 values; with draws, rounded at random."""
    largest = tensor.detach().abs().max() if tensor.numel() else torch.zeros(())
    if not bool(largest > 0):
        return tensor
    if bits == 1:
        return tensor.sign() * tensor.abs().mean(dtype=torch.float64).to(tensor.dtype)
    steps = 2 ** (bits - 1) - 1
    scaled = tensor / largest * steps
    if draws is None:
        rounded = scaled.round()
    else:
        rounded = (scaled + draws.uniform(tensor.shape).to(scaled)).floor().clamp(-steps, steps)
    values: Tensor = rounded / steps * largest
    return values
