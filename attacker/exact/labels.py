"""All workers together: candidates of one sample put side by side, and the sample's label."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacker.exact.cells import Cell
from attacker.exact.matching import Equations, common_u, equations, match
from attacker.exact.solve import Solved
from attacker.exact.tails import Tail, run_tail, top_jacobian
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
    matched: bool
    """Whether candidates could be compared."""


def join_workers(
    cells: Sequence[Cell],
    solved: Sequence[Solved],
    bottoms: Sequence[nn.Module],
    layers: Sequence[str],
    shapes: Sequence[Shape],
    top: nn.Module,
) -> Joined:
    """Match the workers' candidates within cells and read off the labels."""
    count = len(solved[0].h)
    tails = [
        run_tail(bottom.double(), layer, shape, own.h)
        for bottom, layer, shape, own in zip(bottoms, layers, shapes, solved, strict=True)
    ]
    tops = top_jacobian(top.double(), [tail.z.shape[1] for tail in tails])
    if tops is None:
        identity = tuple(torch.arange(count) for _ in solved)
        nothing = torch.full((count, len(solved)), torch.nan, dtype=torch.float64)
        return Joined(identity, torch.full((count,), -1), nothing, False)
    apart = [equations(tail, own.v, jacobian) for tail, own, jacobian in zip(tails, solved, tops, strict=True)]
    orders = match(cells, apart)
    together = [worker.take(order) for worker, order in zip(apart, orders, strict=True)]
    u, _, _ = common_u(together)
    labels = _labels(u, together, [_reorder(tail, order) for tail, order in zip(tails, orders, strict=True)], top)
    misfits = torch.stack([worker.misfit for worker in together], dim=1)
    several = torch.tensor([n for cell in cells if len(cell.samples) > 1 for n in cell.samples], dtype=torch.long)
    for m, worker in enumerate(together):
        # Only in a cell of several may workers be matched wrongly: then their equations for u disagree
        away = ((worker.a[several] @ u[several, :, None])[:, :, 0] - worker.b[several]).norm(dim=1)
        misfits[several, m] = torch.maximum(misfits[several, m], away)
    return Joined(tuple(orders), labels, misfits, True)


def _labels(u: Tensor, workers: Sequence[Equations], z: Sequence[Tensor], top: nn.Module) -> Tensor:
    """Return each sample's label: where all is known the one whose p - y fits best, else the negative entry of u."""
    informed = torch.stack([worker.misfit.isfinite() for worker in workers]).any(dim=0)
    labels = torch.where(informed, u.argmin(dim=1), -1)
    full = torch.stack([part.isfinite().all(dim=1) for part in z]).all(dim=0) & informed
    if bool(full.any()):
        with torch.no_grad():
            p = torch.softmax(top(torch.cat([part[full] for part in z], dim=1)), dim=1)
        guesses = p[:, None] - torch.eye(p.shape[1], dtype=p.dtype)  # (samples, labels, classes)
        cost = p.new_zeros(len(p), p.shape[1])
        for worker in workers:
            left = guesses @ worker.a[full].transpose(1, 2) - worker.b[full, None]
            cost += left.square().sum(dim=2)
        labels[full] = cost.argmin(dim=1)
    return labels


def _reorder(tail: Tail, order: Tensor) -> Tensor:
    return tail.z[order]
