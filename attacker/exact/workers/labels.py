"""All workers together: candidates of one sample put side by side, and the sample's label."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attacker.exact.steps12.cells import Cell
from attacker.exact.steps12.solve import Solved
from attacker.exact.workers.pairing import Equations, Forward, common_u, equations, match, rearrange
from attacker.exact.workers.tails import CHUNK, Tail, bypassed, run_tail, top_jacobian
from vfl.maths.loss import CROSS_ENTROPY, Loss
from vfl.models.layers import FullyConnected
from vfl.models.whole import WholeModel
from vfl.observation import Setting
from vfl.partition import Shape

NOTE = "The coordinator has the labels itself: they were known, and not read from gradients."


@dataclass(frozen=True)
class Joined:
    """The order of every worker's samples that fits the others', and what all of them say together."""

    orders: tuple[Tensor, ...]
    """For each worker (samples,): row n of the sample is row orders[n] of the worker's."""
    labels: Tensor
    """(samples,), -1 where unknown; NaN of a number."""
    misfits: Tensor
    """(samples, workers): the share of v that the known network cannot have sent back; NaN where v is unknown."""
    notes: tuple[str, ...] = ()
    """Why candidates could not be compared, if so."""
    forward: Forward | None = None
    """What candidates in this order make of each other; None where they cannot be compared."""


@dataclass(frozen=True)
class Network:
    """The whole model in float64, with the layer that is attacked at each worker and the shape of its slices."""

    bottoms: Sequence[nn.Module]
    layers: Sequence[str]
    shapes: Sequence[Shape]
    top: nn.Module
    loss: Loss = CROSS_ENTROPY

    @classmethod
    def of(cls, setting: Setting, layers: Sequence[FullyConnected], model: WholeModel) -> "Network":
        """Take a model's parts, which become float64."""
        model = model.double()
        names, shapes = [own.name for own in layers], [box.shape for box in setting.boxes]
        return cls(list(model.bottoms), names, shapes, model.top, setting.loss)

    def bypassed(self) -> list[bool]:
        """Tell at which workers data also go past the layer, as in a residual block around it."""
        return [bypassed(*part) for part in zip(self.bottoms, self.layers, self.shapes, strict=True)]


def unjoined(solved: Sequence[Solved], *notes: str, loss: Loss) -> Joined:
    """Leave every worker's samples as they are: nothing can be said of them together."""
    count = len(solved[0].h)
    identity = tuple(torch.arange(count) for _ in solved)
    nothing = torch.full((count, len(solved)), torch.nan, dtype=torch.float64)
    return Joined(identity, loss.unknown(count), nothing, notes)


def join_workers(
    cells: Sequence[Cell],
    solved: Sequence[Solved],
    network: Network,
    *,
    given: Sequence[Tensor | None] | None = None,
    known: Tensor | None = None,
) -> Joined:
    """Match the workers' candidates within cells and read off the labels.

    `given` has the data (samples, *shape) of workers where they also go past the layer, `known` the labels if they
    are: in a cell only its own are then possible.
    """
    top, loss, data = network.top, network.loss, given or [None] * len(solved)
    parts = [_Worker(*part) for part in zip(network.bottoms, network.layers, network.shapes, solved, data, strict=True)]
    tops = top_jacobian(top, [part.tail(torch.arange(1)).z.shape[1] for part in parts])
    if tops is None:
        return unjoined(
            solved,
            "The top model is not affine, so candidates within cells were not matched across workers.",
            loss=network.loss,
        )
    z, apart = zip(*(part.equations(jacobian) for part, jacobian in zip(parts, tops, strict=True)), strict=True)
    orders = match(cells, apart)
    for cell in cells:
        if len(cell.samples) > 1:
            slots = torch.tensor(cell.samples)
            sent = [own[order[slots]] for own, order in zip(z, orders, strict=True)]
            own = [worker.take(order[slots]) for worker, order in zip(apart, orders, strict=True)]
            forward = Forward(sent, own, top, None if known is None else known[slots], loss=loss)
            for order, chosen in zip(orders, rearrange(forward, len(slots), len(own)).T, strict=True):
                order[slots] = order[slots][chosen]
    together = [worker.take(order) for worker, order in zip(apart, orders, strict=True)]
    u, sent = common_u(together), [own[order] for own, order in zip(z, orders, strict=True)]
    labels = _labels(u, together, sent, top, loss=loss)
    misfits = torch.stack([worker.misfit for worker in together], dim=1)
    several = torch.tensor([n for cell in cells if len(cell.samples) > 1 for n in cell.samples], dtype=torch.long)
    # Only in a cell of several may workers be matched wrongly: then their equations for u disagree
    misfits[several] = torch.maximum(misfits[several], _disagreement([worker.take(several) for worker in together]))
    return Joined(tuple(orders), labels, misfits, forward=Forward(sent, together, top, loss=loss))


@dataclass(frozen=True)
class _Worker:
    """One worker's candidates, and its known network."""

    bottom: nn.Module
    layer: str
    shape: Shape
    solved: Solved
    x: Tensor | None

    def tail(self, rows: Tensor) -> Tail:
        """Run some candidates to the end of the model."""
        x = None if self.x is None else self.x[rows]
        return run_tail(self.bottom, self.layer, self.shape, self.solved.h[rows], x=x)

    def equations(self, jacobian: Tensor) -> tuple[Tensor, Equations]:
        """Return what the worker sends (samples, width) and its equations for u, some samples at a time."""
        found = []
        for rows in torch.arange(len(self.solved.h)).split(CHUNK):
            tail = self.tail(rows)
            found.append((tail.z, equations(tail, self.solved.v[rows], jacobian)))
        together = Equations(*(torch.cat([getattr(one, name) for _, one in found]) for name in ("a", "b", "misfit")))
        return torch.cat([z for z, _ in found]), together


def _disagreement(workers: Sequence[Equations]) -> Tensor:
    """Return (samples, workers) how far each worker is from the u that all have in common; NaN where v is unknown."""
    u = common_u(workers)
    away = torch.stack([((own.a @ u[:, :, None])[:, :, 0] - own.b).norm(dim=1) for own in workers], dim=1)
    return torch.where(torch.stack([own.misfit for own in workers], dim=1).isfinite(), away, torch.nan)


def _labels(u: Tensor, workers: Sequence[Equations], z: Sequence[Tensor], top: nn.Module, *, loss: Loss) -> Tensor:
    """Return each sample's label: where all is known the one whose u fits best, else where u is negative."""
    informed = torch.stack([worker.misfit.isfinite() for worker in workers]).any(dim=0)
    unknown = loss.unknown(len(u))
    labels = unknown if loss.of_number else torch.where(informed, loss.against(u).argmin(dim=1), unknown)
    full = torch.stack([part.isfinite().all(dim=1) for part in z]).all(dim=0) & informed
    if bool(full.any()):
        forward = Forward([part[full] for part in z], [worker.take(full) for worker in workers], top, loss=loss)
        labels[full] = forward.best(torch.arange(int(full.sum()))[:, None].expand(-1, len(workers)))[1]
    return labels


def by_labels(cells: Sequence[Cell], joined: Joined, known: Tensor) -> tuple[Joined, tuple[tuple[int, ...], ...]]:
    """Give every sample of a cell what has its label; return also the groups whose order is still arbitrary.

    Where a cell's labels, as they are read from its gradients, are not those that it should have, one of them is read
    wrongly, and it is left as it is.
    """
    orders = [order.clone() for order in joined.orders]
    misfits = joined.misfits.clone()
    groups: list[tuple[int, ...]] = []
    for cell in cells:
        if len(cell.samples) == 1:
            continue
        slots = torch.tensor(cell.samples)
        wanted, read = known[slots].argsort(stable=True), joined.labels[slots].argsort(stable=True)
        if not torch.equal(known[slots][wanted], joined.labels[slots][read]):
            groups.append(cell.samples)
            continue
        source = torch.empty_like(slots)
        source[wanted] = slots[read]
        for order, before in zip(orders, joined.orders, strict=True):
            order[slots] = before[source]
        misfits[slots] = joined.misfits[source]
        alike = [tuple(slots[known[slots] == label].tolist()) for label in known[slots].unique().tolist()]
        groups += [group for group in alike if len(group) > 1]
    return replace(joined, orders=tuple(orders), misfits=misfits, labels=known), tuple(groups)
