"""Steps I and II at one worker: from the factors of its batches to every sample's h and v."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.cone import separate
from attacker.exact.steps12.directions import Directions, find_directions, merge
from attacker.exact.steps12.lengths import Pairs, Parts, join, own_v, take_apart
from attacker.exact.steps12.subspaces import inputs_side
from vfl.maths.factors import Factors

CutOff = Callable[[Tensor], Tensor]
"""From h (samples, inputs) to where v must be zero (samples, outputs): a ReLU that cuts off sends nothing back."""
PASSES = 5
"""How often remainders are looked for: each pass may complete batches that the next one needs."""
GAP = 30.0
"""How much stronger the remainder must be than the errors that taking out the others leaves."""
CONFIRMED = 1e-3
"""A remainder this close to another batch's subspace belongs to a sample of that batch too; this much of one may be
negative where only its own batch shows it."""


@dataclass(frozen=True)
class Solved:
    """What a worker's gradients gave away."""

    h: Tensor
    """(samples, inputs), NaN where nothing was found."""
    v: Tensor
    """(samples, outputs), unscaled by the batch; NaN where unknown (also for identical slices that no batch parts)."""


def solve(
    cells: Sequence[Cell],
    batches: Sequence[Tensor],
    factors: Sequence[Factors],
    samples: int,
    *,
    cut_off: CutOff | None = None,
) -> Solved:
    """Recover h and v of all samples from the batches' subspaces."""
    directions = find_directions(cells, factors, samples)
    if directions.vectors.shape[1] == 0:  # gradients of zeros
        both = (factors[0].left, factors[0].right)
        return Solved(*(torch.full((samples, len(side)), torch.nan, dtype=torch.float64) for side in both))
    for left in reversed(range(PASSES)):
        parts = [take_apart(f, directions, batch) for f, batch in zip(factors, batches, strict=True)]
        pairs = join(parts, directions.vectors.shape[1])
        h = (directions.vectors / pairs.inverse).T[directions.of]
        h[directions.of < 0] = torch.nan
        incomplete = any(part.hidden.shape[1] for part in parts)
        v = sample_v(cells, directions, parts, pairs, cut_off=cut_off(h) if incomplete and cut_off else None)
        if left == 0 or int(directions.of.min()) >= 0:
            break
        more = _add_remainders(directions, cells, batches, factors, parts=parts, pairs=pairs, v=v)
        if more is directions:
            break
        directions = more
    return Solved(h, v)


def sample_v(
    cells: Sequence[Cell], directions: Directions, parts: Sequence[Parts], pairs: Pairs, *, cut_off: Tensor | None
) -> Tensor:
    """Return every sample's own v (samples, outputs); `cut_off` tells where it is known to be zero."""
    width = parts[0].rows.shape[1]
    v = torch.full((len(directions.of), width), torch.nan, dtype=torch.float64)
    sharing = torch.bincount(directions.of[directions.of >= 0], minlength=directions.vectors.shape[1])
    rounds = {sample: cell.rounds for cell in cells for sample in cell.samples}
    for sample, direction in enumerate(directions.of.tolist()):
        if direction >= 0 and sharing[direction] == 1:
            zeros = None if cut_off is None else cut_off[sample]
            v[sample] = own_v(direction, rounds[sample], parts, pairs, cut_off=zeros)
    for direction in (sharing > 1).nonzero()[:, 0].tolist():
        members = {n: rounds[n] for n in (directions.of == direction).nonzero()[:, 0].tolist()}
        for sample, own in _sharers_v(direction, members, parts, pairs).items():
            v[sample] = own
    return v


def _sharers_v(
    direction: int, members: Mapping[int, tuple[int, ...]], parts: Sequence[Parts], pairs: Pairs
) -> dict[int, Tensor]:
    """Return the v of samples with one direction, as far as their batches part them: each gives the sum of its own."""
    times = [t for t in sorted({t for own in members.values() for t in own}) if direction in parts[t].numbers]
    if not times:
        return {}
    membership = torch.tensor([[float(t in own) for own in members.values()] for t in times], dtype=torch.float64)
    sums = torch.stack([pairs.sums[t][parts[t].numbers == direction][0] for t in times])
    inverse = torch.linalg.pinv(membership, rtol=1e-6)
    determined = ((inverse @ membership).diagonal() - 1).abs() < 1e-6
    return {member: inverse[row] @ sums for row, member in enumerate(members) if determined[row]}


def _add_remainders(
    directions: Directions,
    cells: Sequence[Cell],
    batches: Sequence[Tensor],
    factors: Sequence[Factors],
    *,
    parts: Sequence[Parts],
    pairs: Pairs,
    v: Tensor,
) -> Directions:
    """Return the directions with those that single batches' remainders show; the same ones if there are none.

    Two samples whose v are parallel look like one in the batch where they meet (nearly blank slices of one class), and
    the intersection with that batch misses both. Elsewhere each stands alone: there it is what is left of the batch
    once all the others are taken out of it.
    """
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
