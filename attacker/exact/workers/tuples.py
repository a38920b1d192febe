"""Candidates of several workers checked together: run forward, they must predict the very p - y that came back.

Sharper than comparing equations for u, which leave much open when ReLU has cut off most of a worker's outputs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attacker.exact.workers.pairing import Equations, common_u

ROUNDING = 1e-7
"""Relative misfit below which nothing can be told any more. Samples of one label may differ by little above it."""
MOST = 70_000
"""Combinations that are all tried; with more, exchanges of two candidates are."""


class Forward:
    """The misfit of any choice of candidates within one cell."""

    def __init__(
        self, z: Sequence[Tensor], workers: Sequence[Equations], top: nn.Module, labels: Tensor | None = None
    ) -> None:
        """Begin; `labels` are those that the samples may have, if any are known."""
        self._z, self._workers, self._top = z, workers, top
        self._impossible = torch.ones(workers[0].b.shape[1], dtype=torch.bool)
        self._impossible[slice(None) if labels is None else labels] = False
        self._weight = [worker.weight.square() for worker in workers]

    def best(self, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Return the misfit and the label that fits best, for choices (n, workers) of candidates."""
        known = torch.stack([z[choice[:, m]].isfinite().all(dim=1) for m, z in enumerate(self._z)]).all(dim=0)
        misfit, label = choice.new_zeros(len(choice), dtype=torch.float64), choice.new_zeros(len(choice))
        for mask, judge in ((known, self._forward), (~known, self._backward)):
            if bool(mask.any()):
                misfit[mask], label[mask] = judge(choice[mask])
        return misfit, label

    def _backward(self, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Where an h is missing p cannot be predicted: the others' equations for u must still agree."""
        picked = [worker.take(choice[:, m]) for m, worker in enumerate(self._workers)]
        u = common_u(picked)
        away = torch.stack([((own.a @ u[:, :, None])[:, :, 0] - own.b).square().sum(dim=1) for own in picked])
        weight = torch.stack([own.weight.square() for own in picked])
        label = u.masked_fill(self._impossible, torch.inf).argmin(dim=1)
        return ((weight * away).sum(dim=0) / weight.sum(dim=0)).sqrt(), label

    def _forward(self, choice: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            sent = torch.cat([z[choice[:, m]] for m, z in enumerate(self._z)], dim=1)
            p = torch.softmax(self._top(sent), dim=1)
        guesses = p[:, None] - torch.eye(p.shape[1], dtype=p.dtype)  # (n, labels, classes)
        cost = p.new_zeros(len(p), p.shape[1])
        total = p.new_zeros(len(p))
        for m, worker in enumerate(self._workers):
            picked = choice[:, m]
            away = (guesses @ worker.a[picked].transpose(1, 2) - worker.b[picked, None]).square().sum(dim=2)
            cost += self._weight[m][picked, None] * away
            total += self._weight[m][picked]
        low = cost.masked_fill(self._impossible, torch.inf).min(dim=1)
        return (low.values / total).sqrt(), low.indices


def rearrange(forward: Forward, count: int, workers: int) -> Tensor:
    """Return the choices (count, workers) that fit best, for a cell whose present ones are the diagonal."""
    choice = torch.arange(count)[:, None].expand(count, workers).clone()
    now = forward.best(choice)[0]
    if count == 1 or float(now.max()) < ROUNDING:
        return choice
    if count**workers > MOST:
        return _exchange(forward, choice)
    return _greedy(forward, count, workers)


def _greedy(forward: Forward, count: int, workers: int) -> Tensor:
    """Try all combinations and take the best that are left, one after the other: true ones fit by far the best."""
    choices = torch.cartesian_prod(*[torch.arange(count)] * workers).reshape(-1, workers)
    misfit = torch.cat([forward.best(some)[0] for some in choices.split(5_000)]).nan_to_num(torch.inf)
    taken = []
    for _ in range(count):
        best = choices[int(misfit.argmin())]
        taken.append(best)
        misfit[(choices == best).any(dim=1)] = torch.inf
    return torch.stack(sorted(taken, key=lambda row: int(row[0])))


def _exchange(forward: Forward, choice: Tensor) -> Tensor:
    """Exchange two samples' candidates at one worker, each time where it helps most, as long as it helps.

    Misfits are compared by their logarithms: one sample that fits to rounding says more than another's that fits less
    badly, as a candidate that is off by a little fits badly wherever it is.
    """
    count, workers = choice.shape
    pairs = torch.combinations(torch.arange(count), 2).repeat_interleave(workers, 0)
    at = torch.arange(workers).repeat(len(pairs) // workers)[:, None]
    cost = forward.best(choice)[0].clamp_min(ROUNDING).log()
    for _ in range(count * workers):
        trials = choice[pairs]  # (exchanges, the two samples, workers)
        there = at[:, :, None].expand(-1, 2, 1)
        trials = trials.scatter(2, there, trials.gather(2, there).flip(1))
        after = torch.cat([forward.best(some)[0] for some in trials.flatten(0, 1).split(5_000)]).reshape(-1, 2)
        after = after.clamp_min(ROUNDING).log()
        gain = (cost[pairs].sum(1) - after.sum(1)).nan_to_num(-torch.inf)
        best = int(gain.argmax())
        if float(gain[best]) < 1e-3:
            break
        choice[pairs[best]], cost[pairs[best]] = trials[best], after[best]
    return choice
