"""All workers' candidates of one batch put together: which belong to one sample, its label, what contradicts it.

The neurons of a candidate say what came back to them, the same p - y at every worker. Candidates of one sample, one
from each worker, run forward through the network predict that p - y. Others do not, and neither does a mixture of
samples on which neurons agreed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from attacker.exact.steps12.cells import Cell
from attacker.exact.workers.labels import Network
from attacker.exact.workers.pairing import Equations, Forward, equations, match, rearrange
from attacker.exact.workers.tails import Tail, run_tail, top_jacobian
from vfl.seeds import generator

AGREE = 1e-5
"""Two neurons are exclusive to the same sample when their quotients differ by less, relative."""
NOISE = 0.1
"""A single sample's gradient is h v^T; with more than this share of it beyond rank one, it is rounding noise."""
MOST_PER_SAMPLE = 4
"""Candidates at most: with few classes neurons with the same several samples agree on a mixture too."""
SKETCH = 16
"""Random directions in which quotients are compared: they tell as much as all coordinates."""


@dataclass(frozen=True)
class Candidates:
    """Inputs of the layer, each vouched for by neurons that agree."""

    h: Tensor
    """(candidates, inputs), the best supported first."""
    spread: Tensor
    """(candidates,): how far their neurons are from agreement, relative."""
    v: Tensor
    """(candidates, outputs): the bias gradient at their own neurons, zero at all others."""

    def take(self, some: Tensor) -> "Candidates":
        """Return some of them."""
        return Candidates(self.h[some], self.spread[some], self.v[some])


def candidates(weight: Tensor, bias: Tensor, batch: int) -> Candidates:
    """Return what the gradients of a layer's weight (outputs, inputs) and bias show of a batch of so many samples."""
    weight, bias = weight.double(), bias.double()
    alive = (bias != 0).nonzero()[:, 0]
    groups = [alive] if batch == 1 and len(alive) else _agreeing(weight, bias, alive)
    h, v = weight.new_zeros(len(groups), weight.shape[1]), weight.new_zeros(len(groups), len(bias))
    spread = weight.new_zeros(len(groups))
    for number, neurons in enumerate(sorted(groups, key=len, reverse=True)):
        g, rows = bias[neurons], weight[neurons]
        h[number] = g @ rows / g.square().sum()
        rest = (rows - g[:, None] * h[number]).norm()
        spread[number] = rest / rows.norm() if rest > 0 else 0.0
        v[number, neurons] = g
    sure = (spread < NOISE).nonzero()[: MOST_PER_SAMPLE * batch, 0]
    return Candidates(h[sure], spread[sure], v[sure])


def _agreeing(weight: Tensor, bias: Tensor, alive: Tensor) -> list[Tensor]:
    """Return groups of two or more neurons with the same quotient of weight gradient and bias gradient."""
    from scipy.sparse.csgraph import connected_components  # when it is needed: a second to import

    if len(alive) < 2:
        return []
    quotients = weight[alive] / bias[alive, None]
    if quotients.shape[1] > SKETCH:
        random = generator(0, "quotients")
        quotients = quotients @ torch.randn(weight.shape[1], SKETCH, generator=random, dtype=torch.float64)
    size = quotients.norm(dim=1)
    apart = torch.cdist(quotients, quotients, compute_mode="donot_use_mm_for_euclid_dist")
    # The second term is for slices of zeros, whose quotients have no size
    same = apart <= AGREE * torch.minimum(size[:, None], size[None]) + 1e-2 * AGREE * size.median()
    count, group = connected_components(same.numpy(), directed=False)
    members = [alive[torch.as_tensor(group) == number] for number in range(count)]
    return [neurons for neurons in members if len(neurons) > 1]


UNSURE = 1e-4
"""A residual above this is no evidence: rounding gives 1e-6, and among many combinations some fit by chance."""
MOST = 3_000_000
"""Combinations of candidates that are all tried; with more, exchanges of two candidates are."""


@dataclass(frozen=True)
class Batch:
    """The samples of a batch, in arbitrary order."""

    h: list[Tensor]
    """For each worker (samples, inputs), NaN where not found."""
    labels: Tensor
    """(samples,), -1 where unknown."""
    residuals: Tensor
    """(samples, workers): spread of the neurons, and misfit of p - y where all workers' h are known; NaN: not found."""
    matched: bool
    """Whether the workers' candidates could be compared."""


def join(found: Sequence[Candidates], batch: int, network: Network) -> Batch:
    """Arrange the candidates of all workers so that row n is the same sample everywhere."""
    top = network.top
    parts = zip(network.bottoms, network.layers, network.shapes, found, strict=True)
    tails = [run_tail(bottom, layer, shape, own.h) for bottom, layer, shape, own in parts]
    jacobians = top_jacobian(top, [tail.z.shape[1] for tail in tails])
    if jacobians is None:
        choice = _side_by_side([len(own.h) for own in found], batch)
        return Batch(_pick(found, choice), torch.full((batch,), -1), _spread(found, choice), batch == 1)
    said = [_equations(tail, own, back, batch) for tail, own, back in zip(tails, found, jacobians, strict=True)]
    if batch > 1:  # a mixture may not even activate the neurons that agreed on it
        kept = [(~(own.misfit[:-1] > UNSURE)).nonzero()[:, 0] for own in said]
        found = [own.take(some) for own, some in zip(found, kept, strict=True)]
        tails = [replace(tail, z=tail.z[some]) for tail, some in zip(tails, kept, strict=True)]
        said = [own.take(torch.cat([some, torch.tensor([-1])])) for own, some in zip(said, kept, strict=True)]
    z = [_with_unknown(tail.z) for tail in tails]
    counts = [len(own.h) for own in found]
    exhaustive = math.prod(counts) <= MOST
    forward = Forward(z, said, top)
    choice = _try_all(forward, counts, batch) if exhaustive else _exchange(counts, z, said, top, batch=batch)
    misfit, labels = forward.best(choice)
    complete = (choice >= 0).all(dim=1)
    misfit = torch.where(complete, misfit, torch.nan)
    own = torch.stack([equation.misfit[choice[:, m]] for m, equation in enumerate(said)], dim=1)
    residuals = torch.fmax(torch.fmax(_spread(found, choice), own), misfit[:, None])
    residuals[choice < 0] = torch.nan
    return Batch(_pick(found, choice), torch.where(complete, labels, -1), residuals, True)


def _equations(tail: Tail, own: Candidates, top: Tensor, batch: int) -> Equations:
    """Write what came back to the candidates' own neurons as equations for p - y; a last row for no candidate."""
    room = (0, max(0, top.shape[0] - own.v.shape[1]))  # as many rows as classes at least
    known = tail.sure & (own.v != 0)
    padded = replace(tail, jacobian=pad(tail.jacobian, room), sure=pad(known, room))
    said = equations(padded, pad(own.v * known * batch, room), top)
    nan = said.misfit.new_full((1,), torch.nan)
    return Equations(pad(said.a, (0, 0, 0, 0, 0, 1)), pad(said.b, (0, 0, 0, 1)), torch.cat([said.misfit, nan]))


def _try_all(forward: Forward, counts: Sequence[int], batch: int) -> Tensor:
    """Return the candidates (batch, workers) that make up each sample, -1 where there is none."""
    taken: list[Tensor] = []
    if math.prod(counts):
        choices = torch.cartesian_prod(*map(torch.arange, counts)).reshape(-1, len(counts))
        misfit = torch.cat([forward.best(some)[0] for some in choices.split(20_000)]).nan_to_num(torch.inf)
        while len(taken) < batch and float(misfit.min()) < UNSURE:
            taken.append(choices[int(misfit.argmin())])
            misfit[(choices == taken[-1]).any(dim=1)] = torch.inf
    rest = _side_by_side(counts, batch - len(taken), taken)
    return torch.cat([torch.stack(taken), rest]) if taken else rest


def _exchange(
    counts: Sequence[int], z: Sequence[Tensor], said: Sequence[Equations], top: nn.Module, *, batch: int
) -> Tensor:
    """Do the same for many workers: match by equations alone, then exchange what running forward contradicts."""
    rows = max(batch, *counts)
    numbers = [torch.where(torch.arange(rows) < count, torch.arange(rows), -1) for count in counts]
    orders = match([Cell(tuple(range(rows)), (0,))], [own.take(n) for own, n in zip(said, numbers, strict=True)])
    numbers = [number[order] for number, order in zip(numbers, orders, strict=True)]
    own = [equation.take(number) for equation, number in zip(said, numbers, strict=True)]
    better = rearrange(Forward([part[n] for part, n in zip(z, numbers, strict=True)], own, top), rows, len(counts))
    choice = torch.stack([number[better[:, m]] for m, number in enumerate(numbers)], dim=1)
    misfit = torch.where((choice >= 0).all(dim=1), Forward(z, said, top).best(choice)[0], torch.inf)
    return choice[misfit.argsort(stable=True)[:batch]]


def _side_by_side(counts: Sequence[int], rows: int, taken: Sequence[Tensor] = ()) -> Tensor:
    """Return candidates that are not taken, in the order of their support: nothing says which belong together."""
    choice = torch.full((rows, len(counts)), -1)
    for m, count in enumerate(counts):
        left = [c for c in range(count) if all(c != int(row[m]) for row in taken)][:rows]
        choice[: len(left), m] = torch.tensor(left, dtype=torch.long)
    return choice


def _with_unknown(z: Tensor) -> Tensor:
    """Return z with a last row of NaN, so that -1 stands for an unknown candidate."""
    return torch.cat([z, z.new_full((1, z.shape[1]), torch.nan)])


def _pick(found: Sequence[Candidates], choice: Tensor) -> list[Tensor]:
    return [_with_unknown(own.h)[choice[:, m]] for m, own in enumerate(found)]


def _spread(found: Sequence[Candidates], choice: Tensor) -> Tensor:
    return torch.stack([_with_unknown(own.spread[:, None])[choice[:, m], 0] for m, own in enumerate(found)], dim=1)
