"""A defence: takes a worker's gradients, returns what is uploaded in their place."""

import torch
from pydantic import Field
from torch import Tensor

from vfl.observation import Tensors
from worker.defences import Defence, Played


class RoundOff(Defence):
    """Rounds every entry to a few decimal digits of the largest one in its tensor (no paper: an example)."""

    digits: int = Field(3, ge=1, le=7, description="that are kept")

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Return the rounded gradients."""
        return {name: self._rounded(tensor) for name, tensor in gradients.items()}

    def _rounded(self, tensor: Tensor) -> Tensor:
        step = tensor.abs().max() / 10**self.digits
        return tensor if step == 0 else torch.round(tensor / step) * step
