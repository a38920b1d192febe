"""No defence."""

from vfl.observation import Tensors
from worker.defences import Defence, Played, defences


@defences.register("none")
class NoDefence(Defence):
    """Uploads the true gradients."""

    def apply(self, gradients: Tensors, played: Played) -> Tensors:  # noqa: ARG002
        """Return the gradients as they are."""
        return gradients
