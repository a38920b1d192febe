"""Noise on every entry, Gaussian or Laplace."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from vfl.config.places import PLACES, Place
from vfl.observation import Tensors
from worker.defences import Defence, Played, Swapped, defences
from worker.defences.clip import rms
from worker.keys import Draws


@defences.register("noise")
class Noise(Defence):
    """Adds independent noise to every entry (Zhu et al. 2019, "Deep leakage from gradients", section 5).

    `scale` is the standard deviation for both kinds. Exact zeros get noise like all others. A tensor of zeros has an
    RMS of 0, so with relative noise it stays as it is.
    """

    kind: Literal["gaussian", "laplace"] = "gaussian"
    scale: float = Field(0.1, ge=0, description="the noise's standard deviation")
    relative: bool = Field(True, description="in units of each tensor's RMS, or as it stands")
    places: ClassVar[frozenset[Place]] = frozenset(PLACES)

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Return the gradients with noise."""
        return {name: self._noisy(tensor, played.draws) for name, tensor in gradients.items()}

    def exchange(self, tensor: Tensor, swapped: Swapped) -> Tensor:
        """Return an output or an answer with noise."""
        return self._noisy(tensor, swapped.draws)

    def _noisy(self, tensor: Tensor, draws: Draws) -> Tensor:
        deviation = self.scale * (rms(tensor) if self.relative else 1.0)
        drawn = (draws.normal if self.kind == "gaussian" else partial(_laplace, draws))(tensor.shape)
        return tensor + deviation * drawn.to(tensor)


def _laplace(draws: Draws, shape: Sequence[int]) -> Tensor:
    """Draw Laplace numbers of deviation 1, by the inverse of their distribution."""
    uniform = draws.uniform(shape).mul_(2).sub_(1)
    size = uniform.abs().clamp_(max=1 - 2**-24).neg_().log1p_()  # the clamp keeps -1 from becoming infinite
    return size.mul_(-(0.5**0.5)).copysign_(uniform)
