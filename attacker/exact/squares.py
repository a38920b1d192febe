"""How well each sample's own gradient, taken out of the rounds by least squares, is of rank one."""

import torch
from torch import Tensor


def rank_one_residual(inverse: Tensor, v: Tensor, sketch: Tensor, weight: Tensor, h: Tensor) -> Tensor:
    """Return how far each sample's gradient, taken out of the rounds' (rounds, few, inputs), is from its h v^T."""
    residual = torch.full((len(v),), torch.nan, dtype=torch.float64)
    for n in h.isfinite().all(dim=1).nonzero()[:, 0].tolist():  # one by one: all together are as large as the rounds
        own = torch.einsum("t,tqd->qd", inverse[n], weight)
        residual[n] = (own - torch.outer(sketch @ v[n], h[n])).norm() / own.norm()
    return residual
