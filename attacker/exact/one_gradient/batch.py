"""One round at all workers: its samples' h and v at each, put side by side, with their labels."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attacker.exact.choice import Choice
from attacker.exact.one_gradient.kept import Seen
from attacker.exact.rays import samples_of
from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.solve import Solved
from attacker.exact.workers.labels import Network, join_workers
from attacker.exact.workers.tails import cut_off, possible_v
from vfl.models.whole import WholeModel
from vfl.observation import Setting
from vfl.seeds import derive

BELIEVED = 1e-3
"""The share of a candidate's v that the network cannot have sent back up to which it counts, certain or not."""


@dataclass(frozen=True)
class Batch:
    """What one round gave away; row n of every worker is the same sample's."""

    h: tuple[Tensor, ...]
    """For each worker (rows, inputs), NaN where nothing was found."""
    v: tuple[Tensor, ...]
    """For each worker (rows, outputs), of the sample's own loss; NaN where unknown."""
    labels: Tensor
    """(rows,), -1 where unknown."""
    misfits: Tensor
    """(rows, workers): the share of v that the known network cannot have sent back; NaN where unknown."""
    notes: tuple[str, ...]


def solve_batch(setting: Setting, choice: Choice, seen: Seen, model: WholeModel, *, size: int | None) -> Batch:
    """Return what one round gives away, by the model with its parameters; `size` is that of its batch if it is known.

    Candidates of one sample agree on softmax minus label, which is how those of several workers are put together.
    """
    network = Network.of(setting, choice.layers, model)
    found = []
    for worker, (layer, (weight, bias)) in enumerate(zip(choice.layers, seen.gradients, strict=True)):
        tail = (network.bottoms[worker], layer.name, network.shapes[worker])
        seed = derive(setting.seed, f"rays at worker {worker}", seen.number)
        cut, span = partial(cut_off, *tail), partial(possible_v, *tail)
        found.append(samples_of(weight, bias, cut_off=cut, span=span, batch=size, seed=seed))
    rows, scale = max(1, *(len(own.h) for own in found)), size or setting.batch_size
    solved = [Solved(_padded(own.h, rows, torch.nan), _padded(scale * own.v, rows, torch.nan)) for own in found]
    joined = join_workers([Cell(tuple(range(rows)), (0,))], solved, network)
    h, v, misfits = [], [], joined.misfits.clone()
    for worker, (own, order) in enumerate(zip(solved, joined.orders, strict=True)):
        doubted = ~(_padded(found[worker].certain, rows, False)[order] | (misfits[:, worker] < BELIEVED))
        misfits[doubted, worker] = torch.nan
        h.append(own.h[order].masked_fill(doubted[:, None], torch.nan))
        v.append(own.v[order].masked_fill(doubted[:, None], torch.nan))
    return Batch(tuple(h), tuple(v), joined.labels, misfits, joined.notes)


def _padded(part: Tensor, rows: int, blank: float) -> Tensor:
    """Return a worker's candidates with rows for those of others that it has none of."""
    return torch.cat([part, part.new_full((rows - len(part), *part.shape[1:]), blank)])
