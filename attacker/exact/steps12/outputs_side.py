"""When the inputs have no room for two batches but the outputs have: meet on the v side, then cross over to h."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attacker.exact.steps12.cells import Cell, cells_by_round
from attacker.exact.steps12.factors import Factors
from attacker.exact.steps12.subspaces import cell_subspaces, outputs_side


def cell_subspaces_by_outputs(cells: Sequence[Cell], factors: Sequence[Factors]) -> list[Tensor]:
    """Return each cell's subspace of h (inputs, k), from where its batches meet among the v."""
    found = cell_subspaces(cells, [outputs_side(f) for f in factors])
    best: list[tuple[float, Tensor]] = [(torch.inf, factors[0].left[:, :0]) for _ in cells]
    for own, members in zip(factors, cells_by_round(cells, len(factors)), strict=True):
        widths = [found[position].shape[1] for position in members]
        if sum(widths) != own.rank or own.rank == 0:
            continue  # a batch with unknown samples in it does not come apart
        # G^T = X V^T with the cells' bases side by side in V: X = L Sigma (R^T V)^-T, the cells' h side by side
        dual = torch.linalg.inv(own.right.T @ torch.cat([found[position] for position in members], dim=1)).T
        crossed = own.left @ (own.sigma[:, None] * dual)
        for position, part, weights in zip(members, crossed.split(widths, 1), dual.split(widths, 1), strict=True):
            # The batch with the smallest leverage, never an average: a bad one would spoil the good ones
            leverage = own.noise * float(weights.norm()) / float(part.norm().clamp_min(1e-300))
            if leverage < best[position][0]:
                best[position] = (leverage, torch.linalg.qr(part).Q)
    return [basis for _, basis in best]
