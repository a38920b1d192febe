"""The inputs of a layer that neurons active for one sample alone give away: the rows of its gradient that agree."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vfl.seeds import generator

AGREE = 1e-5
"""Two neurons are exclusive to the same sample when their quotients differ by less, relative."""
NOISE = 0.1
"""A single sample's gradient is h v^T; with more than this share of it beyond rank one, it is rounding noise."""
MOST = 4
"""Candidates per sample at most: with few classes neurons with the same several samples agree on a mixture too."""
SKETCH = 16
"""Random directions in which quotients are compared: they tell as much as all coordinates."""


@dataclass(frozen=True)
class Candidates:
    """Inputs of the layer, each certified by neurons that agree."""

    h: Tensor
    """(candidates, inputs), the best supported first."""
    spread: Tensor
    """(candidates,): how far their neurons are from agreement, relative."""
    v: Tensor
    """(candidates, outputs): the bias gradient at their own neurons, zero at all others."""

    def take(self, some: Tensor) -> "Candidates":
        """Return some of them."""
        return Candidates(self.h[some], self.spread[some], self.v[some])


def candidates(weight: Tensor, bias: Tensor, batch: int) -> Candidates:
    """Return what the gradients of a layer's weight (outputs, inputs) and bias show of a batch of so many samples."""
    weight, bias = weight.double(), bias.double()
    alive = (bias != 0).nonzero()[:, 0]
    groups = [alive] if batch == 1 and len(alive) else _agreeing(weight, bias, alive)
    h, v = weight.new_zeros(len(groups), weight.shape[1]), weight.new_zeros(len(groups), len(bias))
    spread = weight.new_zeros(len(groups))
    for number, neurons in enumerate(sorted(groups, key=len, reverse=True)):
        g, rows = bias[neurons], weight[neurons]
        h[number] = g @ rows / g.square().sum()
        rest = (rows - g[:, None] * h[number]).norm()
        spread[number] = rest / rows.norm() if rest > 0 else 0.0
        v[number, neurons] = g
    sure = (spread < NOISE).nonzero()[: MOST * batch, 0]
    return Candidates(h[sure], spread[sure], v[sure])


def _agreeing(weight: Tensor, bias: Tensor, alive: Tensor) -> list[Tensor]:
    """Return groups of two or more neurons with the same quotient of weight gradient and bias gradient."""
    from scipy.sparse.csgraph import connected_components  # when it is needed: a second to import

    if len(alive) < 2:
        return []
    quotients = weight[alive] / bias[alive, None]
    if quotients.shape[1] > SKETCH:
        random = generator(0, "quotients")
        quotients = quotients @ torch.randn(weight.shape[1], SKETCH, generator=random, dtype=torch.float64)
    size = quotients.norm(dim=1)
    apart = torch.cdist(quotients, quotients, compute_mode="donot_use_mm_for_euclid_dist")
    # The second term is for slices of zeros, whose quotients have no size
    same = apart <= AGREE * torch.minimum(size[:, None], size[None]) + 1e-2 * AGREE * size.median()
    count, group = connected_components(same.numpy(), directed=False)
    members = [alive[torch.as_tensor(group) == number] for number in range(count)]
    return [neurons for neurons in members if len(neurons) > 1]
