"""NoPeek: the worker's bottom model learns outputs that depend less on the slice."""

from typing import Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from vfl.config.places import Place
from worker.defences import Defence, Swapped, defences

TINY = 1e-12


@defences.register("no_peek")
class NoPeek(Defence):
    """NoPeek (Vepakomma et al. 2020): the distance correlation of slices and outputs is added to the worker's loss.

    Outputs are sent as they are. The gradient of `weight` times the distance correlation of the batch is added to the
    gradients of the worker's bottom model.
    """

    places: ClassVar[frozenset[Place]] = frozenset({"outputs"})
    weight: float = Field(0.5, ge=0, description="of the distance correlation, which is from 0 to 1, beside the loss")
    _seen: list[float] = PrivateAttr(default_factory=list)

    def exchange(self, tensor: Tensor, swapped: Swapped) -> Tensor:  # noqa: ARG002
        """Return the output as it is."""
        return tensor

    def penalty(self, x: Tensor, output: Tensor) -> Tensor | None:
        """Return what the worker's loss gets besides; of a single sample nothing is known."""
        if len(x) < 2:
            return None
        found = distance_correlation(x.flatten(1), output.flatten(1))
        self._seen.append(float(found.detach()))
        return self.weight * found

    def report(self) -> dict[str, Any]:
        """Return how much outputs depended on slices, in the first round and in the last."""
        if not self._seen:
            return {}
        first, last = self._seen[0], self._seen[-1]
        return {"distance correlation, first round": first, "distance correlation, last round": last}


def distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """Return the distance correlation of two samples' rows (Székely et al. 2007): 0 to 1, 1 if one is the other."""
    a, b = (_centred(torch.cdist(one, one)) for one in (x, z))
    spread = (a.square().mean() * b.square().mean()).clamp(min=TINY).sqrt()
    return ((a * b).mean().clamp(min=0) / spread + TINY).sqrt()


def _centred(distances: Tensor) -> Tensor:
    return distances - distances.mean(0, keepdim=True) - distances.mean(1, keepdim=True) + distances.mean()
