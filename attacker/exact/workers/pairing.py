"""Which recovered h of one worker belongs with which of another, and the labels: both from softmax minus label.

At every worker v is the known network's back-propagation of u = p - y, the same u for all workers. So each candidate
gives linear equations for u; candidates of one sample have a common solution, others do not. u is negative at
the label alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.exact.steps12.cells import Cell
from attacker.exact.workers.tails import Tail

GOOD = 1e-6
"""The misfit of a v that is known as well as rounding allows."""
UNKNOWN_COST = 1e-2
"""The cost of a candidate that says nothing of u: worse than any true match, better than any false one."""


@dataclass(frozen=True)
class Equations:
    """a u = b for every sample, one worker's: as many rows as classes. Rows of zeros where nothing is known."""

    a: Tensor
    """(samples, classes, classes)."""
    b: Tensor
    """(samples, classes)."""
    misfit: Tensor
    """(samples,): the share of v that no u explains; NaN where v is unknown."""

    @property
    def weight(self) -> Tensor:
        """Return how much each sample's equations are worth: v of which much is unexplained is known that badly."""
        return (GOOD / (self.misfit + GOOD)).nan_to_num(0.0)

    @property
    def weighted(self) -> tuple[Tensor, Tensor]:
        """Return a and b, each sample's times its weight."""
        return self.a * self.weight[:, None, None], self.b * self.weight[:, None]

    def take(self, samples: Tensor) -> "Equations":
        """Return the equations in another order of samples."""
        return Equations(self.a[samples], self.b[samples], self.misfit[samples])


def equations(tail: Tail, v: Tensor, top: Tensor) -> Equations:
    """Write one worker's v as linear equations for u, in units of |v|."""
    samples, classes = len(v), top.shape[0]
    a, b = v.new_zeros(samples, classes, classes), v.new_zeros(samples, classes)
    misfit = v.new_full((samples,), torch.nan)
    size = v.norm(dim=1)
    known = (size > 0) & tail.z.isfinite().all(dim=1)
    if bool(known.any()):
        sure = tail.sure[known].to(v.dtype)
        back = (top @ tail.jacobian[known]).transpose(1, 2) * sure[:, :, None] / size[known, None, None]
        right = v[known] * sure / size[known, None]
        q, r = torch.linalg.qr(back)
        rows = r.shape[1]  # fewer than classes where the layer has fewer outputs
        a[known, :rows] = r
        b[known, :rows] = (q.transpose(1, 2) @ right[:, :, None])[:, :, 0]
        # Dead outputs make `back` rank-deficient: what q spans beyond it would swallow misfit, so solve properly
        u = torch.linalg.pinv(back, rtol=1e-9) @ right[:, :, None]
        misfit[known] = (right - (back @ u)[:, :, 0]).norm(dim=1)
    return Equations(a, b, misfit)


def match(cells: Sequence[Cell], workers: Sequence[Equations]) -> list[Tensor]:
    """Return for each worker the order of samples, permuted within cells, that puts a sample's candidates together."""
    from scipy.optimize import linear_sum_assignment  # when it is needed: a second to import

    orders = [torch.arange(len(worker.b)) for worker in workers]
    for cell in cells:
        if len(cell.samples) == 1:
            continue
        slots = torch.tensor(cell.samples)
        own = [worker.take(slots) for worker in workers]
        # The best informed worker first: the others are compared with what is known by then
        informed = sorted(range(len(own)), key=lambda m: -_rank(own[m]))
        sum_zero = torch.ones(len(slots), 1, own[0].a.shape[2], dtype=torch.float64)
        a = torch.cat([sum_zero, own[informed[0]].weighted[0]], dim=1)
        b = torch.cat([torch.zeros(len(slots), 1, dtype=torch.float64), own[informed[0]].weighted[1]], dim=1)
        for m in informed[1:]:
            cost = _residuals(a, b, own[m])
            picked = torch.as_tensor(linear_sum_assignment(cost.numpy())[1])
            orders[m][slots] = slots[picked]
            a = torch.cat([a, own[m].weighted[0][picked]], dim=1)
            b = torch.cat([b, own[m].weighted[1][picked]], dim=1)
    return orders


def common_u(workers: Sequence[Equations]) -> Tensor:
    """Return u (samples, classes) for each sample from all workers' equations."""
    count, classes = workers[0].b.shape
    a = torch.cat(
        [torch.ones(count, 1, classes, dtype=torch.float64), *(worker.weighted[0] for worker in workers)], dim=1
    )
    b = torch.cat([torch.zeros(count, 1, dtype=torch.float64), *(worker.weighted[1] for worker in workers)], dim=1)
    u: Tensor = (torch.linalg.pinv(a, rtol=1e-7) @ b[:, :, None])[:, :, 0]
    return u


def _residuals(a: Tensor, b: Tensor, candidates: Equations) -> Tensor:
    """Return how badly each candidate (column) agrees with each slot (row)."""
    slots, count = len(b), len(candidates.b)
    more, answers = candidates.weighted
    both = torch.cat([a[:, None].expand(-1, count, -1, -1), more[None].expand(slots, -1, -1, -1)], dim=2)
    right = torch.cat([b[:, None].expand(-1, count, -1), answers[None].expand(slots, -1, -1)], dim=2)
    u = torch.linalg.pinv(both, rtol=1e-9) @ right[..., None]
    cost: Tensor = ((both @ u)[..., 0] - right).norm(dim=2)
    cost[:, candidates.misfit.isnan()] = UNKNOWN_COST
    return cost


def _rank(worker: Equations) -> float:
    if bool(worker.misfit.isnan().any()):
        return -1.0
    return float(torch.linalg.matrix_rank(worker.a, rtol=1e-6).to(torch.float64).mean())
