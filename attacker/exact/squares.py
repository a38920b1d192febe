"""The rounds' sketches for least squares: what to keep of a gradient, and how well each sample's own is of rank one."""

import torch
from torch import Tensor

from attacker.least_squares import SKETCH
from vfl.seeds import generator


def sketch_of(seed: int, worker: int, outputs: int) -> Tensor:
    """Return the fixed random vectors (few, outputs) that a weight gradient is multiplied with as it arrives."""
    if outputs <= SKETCH:
        return torch.eye(outputs, dtype=torch.float64)
    return torch.randn(SKETCH, outputs, generator=generator(seed, "sketch", worker), dtype=torch.float64)


def rank_one_residual(inverse: Tensor, v: Tensor, sketch: Tensor, weight: Tensor, h: Tensor) -> Tensor:
    """Return how far each sample's gradient, taken out of the rounds' (rounds, few, inputs), is from its h v^T."""
    residual = torch.full((len(v),), torch.nan, dtype=torch.float64)
    for n in h.isfinite().all(dim=1).nonzero()[:, 0].tolist():  # one by one: all together are as large as the rounds
        own = torch.einsum("t,tqd->qd", inverse[n], weight)
        residual[n] = (own - torch.outer(sketch @ v[n], h[n])).norm() / own.norm()
    return residual
