"""Clipping: the whole upload is no longer than a limit."""

from pydantic import Field

from vfl.observation import Tensors
from worker.defences import Defence, Played, defences
from worker.defences.sizes import clipped


@defences.register("clip")
class Clip(Defence):
    """Shortens a worker's whole upload to an L2 norm of at most `norm` (the clipping of Abadi et al. 2016, no noise).

    All tensors are one vector here, the top model's among them: the upload keeps its direction.
    """

    norm: float = Field(3.0, gt=0, description="the largest L2 norm of an upload")

    def apply(self, gradients: Tensors, played: Played) -> Tensors:  # noqa: ARG002
        """Return the gradients, all multiplied by one factor of at most 1."""
        return clipped(gradients, self.norm)
