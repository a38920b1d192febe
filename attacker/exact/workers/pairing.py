"""Which recovered h of one worker belongs with which of another, and the labels: both from softmax minus label.

At every worker v is the known network's back-propagation of u, the loss's gradient by the logits (p - y, or the like
with one logit), the same u for all workers. So each candidate gives linear equations for u; candidates of one sample
have a common solution, others do not. u is negative at the label alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attacker.exact.steps12.cells import Cell
from attacker.exact.workers.tails import Tail
from vfl.maths.loss import CROSS_ENTROPY, Loss

GOOD = 1e-6
"""The misfit of a v that is known as well as rounding allows."""
UNKNOWN_COST = 1e-2
"""The cost of a candidate that says nothing of u: worse than any true match, better than any false one."""
ROUNDING = 1e-7
"""Relative misfit below which nothing can be told any more. Samples of one label may differ by little above it."""
CLOSEST = 0.1
"""The share of the next candidate's misfit up to which one is beyond doubt."""
UNFIT = 1e30
"""The misfit of what cannot be judged, so that it is taken last, but still only once."""
PASSES = 10
"""How often what most workers agree on is computed, each time with less weight on who contradicted it."""
MOST = 70_000
"""Combinations that are all tried; with more, exchanges of two candidates are."""


@dataclass(frozen=True)
class Equations:
    """a u = b for every sample, one worker's: as many rows as logits. Rows of zeros where nothing is known."""

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

    def doubted(self, away: Tensor) -> "Equations":
        """Return the equations as known no better than they agree with those of other workers."""
        return replace(self, misfit=torch.maximum(self.misfit, away))

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
        a, b = _stacked([own[informed[0]]])
        for m in informed[1:]:
            cost = _residuals(a, b, own[m])
            # By logarithms: a candidate that is no sample's fits badly wherever it is, and must not move right ones
            picked = torch.as_tensor(linear_sum_assignment(cost.clamp_min(ROUNDING).log().numpy())[1])
            orders[m][slots] = slots[picked]
            more, answers = own[m].take(picked).doubted(cost[torch.arange(len(slots)), picked]).weighted
            a, b = torch.cat([a, more], dim=1), torch.cat([b, answers], dim=1)
    return orders


def agreeing(workers: Sequence[Equations]) -> list[Equations]:
    """Return the workers' equations, those doubted that contradict the u that most of their row agree on."""
    found = list(workers)
    for _ in range(PASSES):
        u = common_u(found)
        found = [own.doubted((own.a @ u[:, :, None] - own.b[:, :, None]).norm(dim=(1, 2))) for own in workers]
    return found


def common_u(workers: Sequence[Equations]) -> Tensor:
    """Return u (samples, classes) for each sample from all workers' equations."""
    a, b = _stacked(workers)
    u: Tensor = (torch.linalg.pinv(a, rtol=1e-7) @ b[:, :, None])[:, :, 0]
    return u


def _stacked(workers: Sequence[Equations]) -> tuple[Tensor, Tensor]:
    """Return the workers' equations below each other, weighted; the first is that several entries of u sum to 0."""
    count, outputs = workers[0].b.shape
    a, b = workers[0].b.new_ones(count, 1, outputs), workers[0].b.new_zeros(count, 1)
    if outputs == 1:
        a, b = a[:, :0], b[:, :0]
    more, answers = zip(*(worker.weighted for worker in workers), strict=True)
    return torch.cat([a, *more], dim=1), torch.cat([b, *answers], dim=1)


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


class Forward:
    """The misfit of any choice of candidates within one cell: run forward, they must predict the p - y that came back.

    Sharper than comparing equations for u, which leave much open when ReLU has cut off most of a worker's outputs.
    """

    def __init__(
        self,
        z: Sequence[Tensor],
        workers: Sequence[Equations],
        top: nn.Module,
        labels: Tensor | None = None,
        *,
        loss: Loss = CROSS_ENTROPY,
    ) -> None:
        """Begin; `labels` are those that the samples may have, if any are known."""
        self._z, self.workers, self._top, self._loss = z, workers, top, loss
        self._impossible = torch.ones(2 if loss.name == "binary" else workers[0].b.shape[1], dtype=torch.bool)
        self._impossible[slice(None) if labels is None or loss.of_number else labels] = False
        self._weight = [worker.weight.square() for worker in workers]

    def best(self, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Return the misfit and the label that fits best, for choices (n, workers) of candidates."""
        known = torch.stack([z[choice[:, m]].isfinite().all(dim=1) for m, z in enumerate(self._z)]).all(dim=0)
        if self._loss.of_number:  # any number explains any u
            return self._backward(choice)
        misfit, label = choice.new_zeros(len(choice), dtype=torch.float64), choice.new_zeros(len(choice))
        for mask, judge in ((known, self._forward), (~known, self._backward)):
            if bool(mask.any()):
                misfit[mask], label[mask] = judge(choice[mask])
        return misfit, label

    def _backward(self, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Where an h is missing p cannot be predicted: the others' equations for u must still agree."""
        picked = [worker.take(choice[:, m]) for m, worker in enumerate(self.workers)]
        u = common_u(picked)
        away = torch.stack([((own.a @ u[:, :, None])[:, :, 0] - own.b).square().sum(dim=1) for own in picked])
        weight = torch.stack([own.weight.square() for own in picked])
        if self._loss.of_number:
            label = self._loss.number(u, self._logits(choice))
        else:
            label = self._loss.against(u).masked_fill(self._impossible, torch.inf).argmin(dim=1)
        return ((weight * away).sum(dim=0) / weight.sum(dim=0)).sqrt(), label

    def _forward(self, choice: Tensor) -> tuple[Tensor, Tensor]:
        guesses = self._loss.possible_u(self._logits(choice))  # (n, classes, outputs)
        if self._loss.hides_divisor:
            guesses = guesses * self._sizes(choice, guesses)
        cost = guesses.new_zeros(guesses.shape[:2])
        total = guesses.new_zeros(len(guesses))
        for m, worker in enumerate(self.workers):
            picked = choice[:, m]
            away = (guesses @ worker.a[picked].transpose(1, 2) - worker.b[picked, None]).square().sum(dim=2)
            cost += self._weight[m][picked, None] * away
            total += self._weight[m][picked]
        low = cost.masked_fill(self._impossible, torch.inf).min(dim=1)
        return (low.values / total).sqrt(), low.indices

    def _logits(self, choice: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self._top(torch.cat([z[choice[:, m]] for m, z in enumerate(self._z)], dim=1))
        return logits

    def _sizes(self, choice: Tensor, guesses: Tensor) -> Tensor:
        """Return (n, classes, 1) how many times a guess u best explains what came back, where that is not known."""
        along = guesses.new_zeros(guesses.shape[:2])
        square = along.clone()
        for m, worker in enumerate(self.workers):
            picked = choice[:, m]
            made = guesses @ worker.a[picked].transpose(1, 2)
            along += self._weight[m][picked, None] * (made * worker.b[picked, None]).sum(dim=2)
            square += self._weight[m][picked, None] * made.square().sum(dim=2)
        return (along / square.clamp_min(1e-300)).clamp_min(0.0)[:, :, None]


def beyond_doubt(forward: Forward, believed: float) -> Tensor:
    """Tell which candidates (samples, workers) belong with the others of their row, and no other could.

    One that fits must fit by far better than the next: samples of one label may have nearly the same u. Run forward,
    all workers' candidates must be right for one of them to fit; their equations for u say less, but of any two.
    """
    equations, agreed = forward.workers, agreeing(forward.workers)  # one that is no sample's must not spoil its row
    count, workers = len(equations[0].b), len(equations)
    sure = torch.zeros(count, workers, dtype=torch.bool)
    row = torch.arange(count)
    for m, own in enumerate(equations):
        others = [worker for i, worker in enumerate(agreed) if i != m]
        if not others:  # what the network can have sent back, for a label that there is, is a sample whole
            sure[:, m] = (own.misfit < believed) & (forward.best(row[:, None])[0] < believed)
            continue
        choice = row[:, None, None].repeat(1, count, workers)
        choice[:, :, m] = row
        run = forward.best(choice.flatten(0, 1))[0].reshape(count, count).nan_to_num(UNFIT)
        for cost in (_residuals(*_stacked(others), own), run):
            fits = cost.diagonal().clone()
            following = cost.fill_diagonal_(torch.inf).min(dim=1).values
            sure[:, m] |= (fits < believed) & (fits < CLOSEST * following) & own.misfit.isfinite()
    return sure


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
    misfit = torch.cat([forward.best(some)[0] for some in choices.split(5_000)]).nan_to_num(UNFIT)
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
