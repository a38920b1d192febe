"""One round at all workers: its samples' h and v at each, put side by side, with their labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from attacker.exact.choice import Choice
from attacker.exact.one_gradient.kept import Seen
from attacker.exact.rays import Found, Known, samples_of
from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.solve import Solved
from attacker.exact.workers.labels import Joined, Network, join_workers
from attacker.exact.workers.pairing import beyond_doubt
from attacker.exact.workers.tails import cut_off, possible_v, top_jacobian
from vfl.maths.loss import Loss
from vfl.models.whole import WholeModel
from vfl.observation import Setting
from vfl.seeds import derive

BELIEVED = 1e-3
"""How far a candidate's v may be from what the network sends back for the sample that other workers have of it."""


@dataclass(frozen=True)
class Present:
    """People who take part in a round for certain, at one worker."""

    people: Tensor
    known: Known


@dataclass(frozen=True)
class Row:
    """One sample as some workers show it in a round."""

    h: dict[int, Tensor]
    """By worker."""
    label: float
    """A class, or a number; -1 or NaN where unknown."""
    people: frozenset[int]
    """Who it is: the known samples that it has slices of."""


@dataclass(frozen=True)
class Batch:
    """What one round gave away."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def solve_batch(
    setting: Setting,
    choice: Choice,
    seen: Seen,
    model: WholeModel,
    *,
    size: int | None,
    present: Sequence[Present],
) -> Batch:
    """Return what one round gives away, by the model with its parameters; `size` is that of its batch if it is known.

    Candidates of one sample agree on softmax minus label, which is how those of several workers are put together.
    """
    network = Network.of(setting, choice.layers, model)
    found = []
    tops = _one_way(setting, network.top, model.widths)
    for worker, (layer, (weight, bias)) in enumerate(zip(choice.layers, seen.gradients, strict=True)):
        tail = (network.bottoms[worker], layer.name, network.shapes[worker])
        seed = derive(setting.seed, f"rays at worker {worker}", seen.number)
        cut = partial(cut_off, *tail)
        span = None if choice.by_chance else partial(possible_v, *tail, through=tops[worker])
        own = present[worker].known
        found.append(samples_of(weight, bias, cut_off=cut, span=span, batch=size, seed=seed, known=own))
    count, scale = max(1, *(len(own.h) for own in found)), size or setting.batch_size
    solved = [Solved(_padded(own.h, count, torch.nan), _padded(scale * own.v, count, torch.nan)) for own in found]
    joined = join_workers([Cell(tuple(range(count)), (0,))], solved, network)
    return Batch(tuple(_rows(found, present, joined, setting.loss)), joined.notes)


def _one_way(setting: Setting, top: nn.Module, widths: Sequence[int]) -> Sequence[Tensor | None]:
    """Return for each worker (width, 1) the one direction of what comes back through the top model, where it has one.

    Two classes, or one logit, have a u of one direction, and an affine top model sends it back in one.
    """
    jacobians = top_jacobian(top, widths) if setting.loss.directions(setting.classes) == 1 else None
    if jacobians is None:
        return [None] * len(widths)
    u = torch.tensor([1.0, -1.0][: setting.outputs], dtype=torch.float64)
    return [(u @ one)[:, None] for one in jacobians]


def _rows(found: Sequence[Found], present: Sequence[Present], joined: Joined, loss: Loss) -> list[Row]:
    """Return the samples: candidates that agree beyond doubt are one, others are one each."""
    linked = beyond_doubt(joined.forward, BELIEVED) if joined.forward else torch.zeros_like(joined.misfits).bool()
    rows: list[Row] = []
    unknown = loss.unknown(1).item()
    for at in range(len(joined.labels)):
        together: dict[int, Tensor] = {}
        people: set[int] = set()
        for worker, own in enumerate(found):
            candidate = int(joined.orders[worker][at])
            if candidate >= len(own.h):
                continue
            h, which = own.h[candidate], int(own.known[candidate])
            who = set() if which < 0 else {int(present[worker].people[which])}
            if linked[at, worker]:
                together[worker] = h
                people |= who
            elif own.certain[candidate] or which >= 0 or joined.misfits[at, worker] < BELIEVED:
                rows.append(Row({worker: h}, unknown, frozenset(who)))
        if together:
            rows.append(Row(together, joined.labels[at].item(), frozenset(people)))
    return rows


def _padded(part: Tensor, rows: int, blank: float) -> Tensor:
    """Return a worker's candidates with rows for those of others that it has none of."""
    return torch.cat([part, part.new_full((rows - len(part), *part.shape[1:]), blank)])
