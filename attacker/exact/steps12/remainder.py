"""Samples that no intersection shows: what is left of a batch once all the others are taken out of it.

Two samples whose v are parallel look like one in the batch where they meet (nearly blank slices of one class), and
the intersection with that batch misses both. Elsewhere each stands alone: there it is the remainder.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.cone import separate
from attacker.exact.steps12.directions import Directions, merge
from attacker.exact.steps12.factors import Factors
from attacker.exact.steps12.lengths import Pairs, Parts
from attacker.exact.steps12.subspaces import inputs_side

GAP = 30.0
"""How much stronger the remainder must be than the errors that taking out the others leaves."""
CONFIRMED = 1e-3
"""A remainder this close to another batch's subspace belongs to a sample of that batch too; this much of one may be
negative where only its own batch shows it."""


def add_remainders(
    directions: Directions,
    cells: Sequence[Cell],
    batches: Sequence[Tensor],
    factors: Sequence[Factors],
    *,
    parts: Sequence[Parts],
    pairs: Pairs,
    v: Tensor,
) -> Directions:
    """Return the directions with those that single batches' remainders show; the same ones if there are none."""
    from scipy.optimize import linear_sum_assignment  # when it is needed: a second to import

    rounds = {sample: cell.rounds for cell in cells for sample in cell.samples}
    best: dict[int, tuple[float, Tensor]] = {}
    for t, batch in enumerate(batches):
        missing = [n for n in batch.tolist() if directions.of[n] < 0]
        if not missing or parts[t].hidden.shape[1] == 0:
            continue
        rays, error = _rays(directions, batch, factors[t], parts[t], sums=pairs.sums[t], inverse=pairs.inverse, v=v)
        if rays is None:
            continue
        away = torch.ones(len(missing), rays.shape[1])
        for i, n in enumerate(missing):
            for other in rounds[n]:
                if other != t and factors[other].rank:
                    away[i] = torch.minimum(away[i], inputs_side(factors[other]).distance(rays)[0].float())
        complete = rays.shape[1] == len(missing)
        for i, a in zip(*linear_sum_assignment(away.numpy()), strict=True):
            alone = complete and len(missing) == 1 and float(rays[:, a].clamp_max(0).norm()) < CONFIRMED
            trusted = float(away[i, a]) < CONFIRMED or alone
            if trusted and (missing[i] not in best or error < best[missing[i]][0]):
                best[missing[i]] = (error, rays[:, a])
    if not best:
        return directions
    of, count = directions.of.clone(), directions.vectors.shape[1]
    for number, sample in enumerate(best):
        of[sample] = count + number
    new = torch.stack([ray for _, ray in best.values()], dim=1)
    return merge(Directions(torch.cat([directions.vectors, new], dim=1), of))


def _rays(
    directions: Directions, batch: Tensor, factors: Factors, part: Parts, *, sums: Tensor, inverse: Tensor, v: Tensor
) -> tuple[Tensor | None, float]:
    """Return the unit vectors of the samples that a batch has besides the known ones, and their error."""
    known = sums.clone()
    own = directions.of[batch]
    for row, number in enumerate(part.numbers.tolist()):
        members = batch[own == number]
        if bool(v[members].isfinite().all()):
            known[row] = v[members].sum(dim=0)
    inside = factors.left.T @ directions.vectors[:, part.numbers]
    rest = factors.sigma[:, None] * factors.right.T - (inside / inverse[part.numbers]) @ known / factors.size
    if not bool(rest.isfinite().all()):
        return None, 1.0
    u, values, _ = torch.linalg.svd(rest, full_matrices=False)
    count = part.hidden.shape[1]
    beyond = float(values[count]) if len(values) > count else factors.noise
    if float(values[count - 1]) < GAP * beyond:
        return None, 1.0
    error = beyond / float(values[count - 1])
    return separate(factors.left @ u[:, :count], error / len(factors.left) ** 0.5), error
