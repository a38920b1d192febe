"""Steps I and II at one worker: from the factors of its batches to every sample's h and v."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.directions import Directions, find_directions
from attacker.exact.steps12.factors import Factors
from attacker.exact.steps12.lengths import Pairs, Parts, join, own_v, take_apart
from attacker.exact.steps12.remainder import add_remainders

CutOff = Callable[[Tensor], Tensor]
"""From h (samples, inputs) to where v must be zero (samples, outputs): a ReLU that cuts off sends nothing back."""
PASSES = 5
"""How often remainders are looked for: each pass may complete batches that the next one needs."""


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
        more = add_remainders(directions, cells, batches, factors, parts=parts, pairs=pairs, v=v)
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
