"""Noise on every entry, Gaussian or Laplace."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from vfl.observation import Tensors
from worker.defences import Defence, Played, defences
from worker.defences.sizes import rms


@defences.register("noise")
class Noise(Defence):
    """Adds independent noise to every entry (Zhu et al. 2019, "Deep leakage from gradients", section 5).

    `scale` is the standard deviation for both kinds. Exact zeros get noise like all others. A tensor of zeros has an
    RMS of 0, so with relative noise it stays as it is.
    """

    kind: Literal["gaussian", "laplace"] = "gaussian"
    scale: float = Field(0.1, ge=0, description="the noise's standard deviation")
    relative: bool = Field(True, description="in units of each tensor's RMS, or as it stands")

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Return the gradients with noise."""
        return {name: self._noisy(tensor, played.random) for name, tensor in gradients.items()}

    def _noisy(self, tensor: Tensor, random: torch.Generator) -> Tensor:
        deviation = self.scale * (rms(tensor) if self.relative else 1.0)
        drawn = gaussian(tensor, random) if self.kind == "gaussian" else _laplace(tensor, random)
        return tensor + deviation * drawn.to(tensor)


def gaussian(like: Tensor, random: torch.Generator) -> Tensor:
    """Draw standard normal numbers, the same on every device."""
    return torch.empty(like.shape, dtype=torch.float32).normal_(generator=random)


def _laplace(like: Tensor, random: torch.Generator) -> Tensor:
    """Draw Laplace numbers of deviation 1, by the inverse of their distribution."""
    uniform = torch.empty(like.shape, dtype=torch.float32).uniform_(-1.0, 1.0, generator=random)
    size = uniform.abs().clamp_(max=1 - 2**-24).neg_().log1p_()  # the clamp keeps -1 from becoming infinite
    return size.mul_(-(0.5**0.5)).copysign_(uniform)
