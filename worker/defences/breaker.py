"""A circuit breaker: the worker watches its own leakage, and uploads nothing any more once it crosses a limit."""

from typing import Any

import torch
from pydantic import Field

from vfl.models.layers import fully_connected, representation
from vfl.observation import BOTTOM, Tensors
from worker.defences import Defence, Plan, Played, WithheldError, defences
from worker.leakage import Watch


@defences.register("breaker")
class Breaker(Defence):
    """Runs steps I and II (Jin et al. 2021) on the worker's own uploads, and stops uploading when they succeed.

    Put it last in a chain, so that it sees what would really be uploaded. It looks ahead: a round that would bring the
    leak over the limit is not uploaded any more. What the coordinator does then is its `federation.when_withheld`.
    """

    limit: float = Field(0.0, ge=0, lt=1, description="the share of the worker's samples that may leak")
    error: float = Field(0.1, gt=0, lt=1, description="a sample counts as leaked when its h is known this well")
    cell: int = Field(8, ge=1, description="samples that only come together count as parted if there are so few")

    keeps_count = True

    def start(self, plan: Plan) -> "_Breaker":
        """Begin to watch."""
        return _Breaker(self, plan)


class _Breaker:
    def __init__(self, options: Breaker, plan: Plan) -> None:
        self._options, self._plan = options, plan
        self._watch: Watch | None = None
        self._layer = ""
        self._leaked = 0.0
        self._last = 0

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        """Return the gradients, unless what they would add to earlier uploads leaks too much."""
        if played.number <= self._last:
            return gradients  # a round that is done again: the same numbers, so no second look
        if self._watch is None:
            layer = next(iter(fully_connected(played.model, played.x.shape[1:])), None)
            if layer is None or not layer.bias:
                raise WithheldError("its breaker finds no fully connected layer with a bias to watch")
            self._layer = layer.name
            self._watch = Watch(
                self._plan, layer.inputs, layer.outputs, error=self._options.error, cell=self._options.cell
            )
        weight, bias = (gradients[f"{BOTTOM}{self._layer}.{part}"] for part in ("weight", "bias"))
        with torch.no_grad():
            truth = representation(played.model, self._layer, played.x)
        self._watch.add(played.rows, truth, weight, bias)
        leaked = self._watch.leaked()
        if leaked > self._options.limit:
            raise WithheldError(
                f"its breaker expects {leaked:.1%} of its samples to leak with it, and its limit is "
                f"{self._options.limit:.1%}"
            )
        self._leaked, self._last = leaked, played.number
        return gradients

    def report(self) -> dict[str, Any]:
        """Return the share of samples that leaked by the worker's own estimate."""
        return {"leaked": self._leaked, "limit": self._options.limit}
