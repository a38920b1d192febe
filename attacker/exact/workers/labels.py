"""All workers together: candidates of one sample put side by side, and the sample's label."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.solve import Solved
from attacker.exact.workers.pairing import Equations, common_u, equations, match
from attacker.exact.workers.tails import CHUNK, Tail, run_tail, top_jacobian
from attacker.exact.workers.tuples import Forward, rearrange
from vfl.partition import Shape


@dataclass(frozen=True)
class Joined:
    """The order of every worker's samples that fits the others', and what all of them say together."""

    orders: tuple[Tensor, ...]
    """For each worker (samples,): row n of the sample is row orders[n] of the worker's."""
    labels: Tensor
    """(samples,), -1 where unknown."""
    misfits: Tensor
    """(samples, workers): the share of v that the known network cannot have sent back; NaN where v is unknown."""
    notes: tuple[str, ...] = ()
    """Why candidates could not be compared, if so."""


def unjoined(solved: Sequence[Solved], *notes: str) -> Joined:
    """Leave every worker's samples as they are: nothing can be said of them together."""
    count = len(solved[0].h)
    identity = tuple(torch.arange(count) for _ in solved)
    nothing = torch.full((count, len(solved)), torch.nan, dtype=torch.float64)
    return Joined(identity, torch.full((count,), -1), nothing, notes)


def join_workers(
    cells: Sequence[Cell],
    solved: Sequence[Solved],
    bottoms: Sequence[nn.Module],
    layers: Sequence[str],
    shapes: Sequence[Shape],
    top: nn.Module,
    given: Sequence[Tensor | None] | None = None,
    known: Tensor | None = None,
) -> Joined:
    """Match the workers' candidates within cells and read off the labels.

    `given` has the data (samples, *shape) of workers where they also go past the layer, `known` the labels if they
    are: in a cell only its own are then possible.
    """
    parts = [
        (bottom.double(), layer, shape, own, x)
        for bottom, layer, shape, own, x in zip(
            bottoms, layers, shapes, solved, given or [None] * len(solved), strict=True
        )
    ]
    tops = top_jacobian(top.double(), [_rows_of(torch.arange(1), *part).z.shape[1] for part in parts])
    if tops is None:
        return unjoined(
            solved, "The top model is not affine, so candidates within cells were not matched across workers."
        )
    z, apart = zip(*(_equations_of(jacobian, *part) for part, jacobian in zip(parts, tops, strict=True)), strict=True)
    orders = match(cells, apart)
    for cell in cells:
        if len(cell.samples) > 1:
            _check_forward(torch.tensor(cell.samples), orders, apart, z, top, known)
    together = [worker.take(order) for worker, order in zip(apart, orders, strict=True)]
    u = common_u(together)
    labels = _labels(u, together, [sent[order] for sent, order in zip(z, orders, strict=True)], top)
    misfits = torch.stack([worker.misfit for worker in together], dim=1)
    several = torch.tensor([n for cell in cells if len(cell.samples) > 1 for n in cell.samples], dtype=torch.long)
    # Only in a cell of several may workers be matched wrongly: then their equations for u disagree
    misfits[several] = torch.maximum(misfits[several], _disagreement([worker.take(several) for worker in together]))
    return Joined(tuple(orders), labels, misfits)


def _equations_of(
    jacobian: Tensor, bottom: nn.Module, layer: str, shape: Shape, own: Solved, x: Tensor | None
) -> tuple[Tensor, Equations]:
    """Return what one worker sends (samples, width) and its equations for u, some samples at a time."""
    found = []
    for rows in torch.arange(len(own.h)).split(CHUNK):
        tail = _rows_of(rows, bottom, layer, shape, own, x)
        found.append((tail.z, equations(tail, own.v[rows], jacobian)))
    together = Equations(*(torch.cat([getattr(one, name) for _, one in found]) for name in ("a", "b", "misfit")))
    return torch.cat([z for z, _ in found]), together


def _rows_of(rows: Tensor, bottom: nn.Module, layer: str, shape: Shape, own: Solved, x: Tensor | None) -> Tail:
    return run_tail(bottom, layer, shape, own.h[rows], None if x is None else x[rows])


def _check_forward(
    slots: Tensor,
    orders: Sequence[Tensor],
    apart: Sequence[Equations],
    sent: Sequence[Tensor],
    top: nn.Module,
    known: Tensor | None,
) -> None:
    """Put a cell's candidates in another order where running them forward contradicts the present one."""
    z = [own[order[slots]] for own, order in zip(sent, orders, strict=True)]
    own = [worker.take(order[slots]) for worker, order in zip(apart, orders, strict=True)]
    choice = rearrange(Forward(z, own, top, None if known is None else known[slots]), len(slots), len(own))
    for m, order in enumerate(orders):
        order[slots] = order[slots][choice[:, m]]


def _disagreement(workers: Sequence[Equations]) -> Tensor:
    """Return (samples, workers) how far each worker is from the u that all have in common; NaN where v is unknown."""
    u = common_u(workers)
    away = torch.stack([((own.a @ u[:, :, None])[:, :, 0] - own.b).norm(dim=1) for own in workers], dim=1)
    return torch.where(torch.stack([own.misfit for own in workers], dim=1).isfinite(), away, torch.nan)


def _labels(u: Tensor, workers: Sequence[Equations], z: Sequence[Tensor], top: nn.Module) -> Tensor:
    """Return each sample's label: where all is known the one whose p - y fits best, else the negative entry of u."""
    informed = torch.stack([worker.misfit.isfinite() for worker in workers]).any(dim=0)
    labels = torch.where(informed, u.argmin(dim=1), -1)
    full = torch.stack([part.isfinite().all(dim=1) for part in z]).all(dim=0) & informed
    if bool(full.any()):
        forward = Forward([part[full] for part in z], [worker.take(full) for worker in workers], top)
        labels[full] = forward.best(torch.arange(int(full.sum()))[:, None].expand(-1, len(workers)))[1]
    return labels
