"""No defence."""

from vfl.observation import Tensors
from worker.defences import Defence, defences


@defences.register("none")
class NoDefence(Defence):
    """Uploads the true gradients."""

    def apply(self, gradients: Tensors) -> Tensors:
        """Return the gradients as they are."""
        return gradients
