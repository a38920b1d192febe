"""How well each sample's own gradient, taken out of the rounds by least squares, is of rank one."""

import torch
from torch import Tensor


def rank_one_residual(inverse: Tensor, v: Tensor, sketch: Tensor, weight: Tensor, h: Tensor) -> Tensor:
    """Return how far each sample's gradient, taken out of the rounds' (rounds, few, inputs), is from its h v^T."""
    residual = torch.full((len(v),), torch.nan, dtype=torch.float64)
    for part in h.isfinite().all(dim=1).nonzero()[:, 0].split(64):  # all together are as large as the rounds
        own = torch.einsum("nt,tqd->nqd", inverse[part], weight)
        rest = own - torch.einsum("nq,nd->nqd", v[part] @ sketch.T, h[part])
        residual[part] = rest.flatten(1).norm(dim=1) / own.flatten(1).norm(dim=1)
    return residual
