"""A variational bottleneck: outputs are noisy, and the worker's bottom model learns to make them small."""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from vfl.config.places import Place
from worker.defences import Defence, Swapped, defences


@defences.register("bottleneck")
class Bottleneck(Defence):
    """Information bottleneck (Alemi et al. 2017, noise of one fixed deviation): a bound on what outputs tell of slices.

    What is sent is normal around the output. `weight` times the divergence of that from a normal distribution around
    zero, which bounds the information (in nats) on the slice, is added to the worker's loss.
    """

    places: ClassVar[frozenset[Place]] = frozenset({"outputs"})
    weight: float = Field(0.01, ge=0, description="of the divergence, the mean over a batch's samples")
    deviation: float = Field(1.0, gt=0, description="of the noise, and of the distribution around zero")

    def exchange(self, tensor: Tensor, swapped: Swapped) -> Tensor:
        """Return the output with noise."""
        return tensor + self.deviation * swapped.draws.normal(tensor.shape).to(tensor)

    def penalty(self, x: Tensor, output: Tensor) -> Tensor:
        """Return what the worker's loss gets besides."""
        return self.weight * output.square().sum() / (2 * self.deviation**2 * len(x))
