"""Recovered samples before the evidence: each round is asked of every sample alone, then of its batch together."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacker.certificate.determined import Determined, data_of_inputs
from attacker.certificate.explained import ROUNDING, alone, applies, left_over, own_parts, together
from attacker.certificate.network import Network, Pass
from vfl.maths.factors import Factors
from vfl.maths.loss import is_known
from vfl.models.layers import FullyConnected
from vfl.observation import ModelTensors, Setting
from vfl.recovery import CERTIFIED

CLEARLY = 10.0
"""How many times what is left unexplained a difference must be to count as seen."""


@dataclass(frozen=True)
class Round:
    """One round, reduced."""

    number: int
    samples: Tensor
    """The samples that were in its batch."""
    size: int
    """How many samples its batch had."""
    parameters: ModelTensors
    factors: tuple[Factors, ...]
    """Of the gradient of each worker's attacked layer."""
    whole: tuple[Tensor, ...]
    """Each worker's whole gradient and the top model's last, as sketches."""


@dataclass(frozen=True)
class Played:
    """A round with the recovered samples in it."""

    round: Round
    here: Tensor
    """The samples of the batch that were recovered."""
    passed: Pass
    alone: Tensor
    """(samples, workers)."""
    told_apart: Tensor
    """(samples,): what would change if slices of samples that share all rounds were exchanged; infinite if none do."""


class Case:
    """Recovered slices and labels, and the network that they are run through."""

    def __init__(
        self,
        setting: Setting,
        layers: Sequence[FullyConnected],
        slices: Sequence[Tensor],
        labels: Tensor,
        *,
        sketch: Callable[[int, Tensor], Tensor],
    ) -> None:
        self._setting, self._layers, self._slices, self._labels = setting, layers, slices, labels
        self._sketch = sketch
        self._known = is_known(labels)
        for part in slices:
            self._known = self._known & part.flatten(1).isfinite().all(dim=1)
        self._network = Network(setting, [layer.name for layer in layers])
        self._loaded: ModelTensors | None = None
        shape = (len(labels), len(layers))
        self._worst = torch.full(shape, torch.nan, dtype=torch.float64)
        self._blur = torch.full(shape, torch.nan, dtype=torch.float64)
        self._told_apart = torch.zeros(len(labels), dtype=torch.bool)
        self._suspect = ~self._known[:, None].expand(shape).clone()

    def certificates(self, rounds: Sequence[Round]) -> Tensor:
        """Return what all rounds say together."""
        played = self._play(rounds)
        self._suspect_some(played)
        bounds = [
            Determined(len(self._labels), layer.inputs, math.prod(box.shape))
            for layer, box in zip(self._layers, self._setting.boxes, strict=True)
        ]
        for one in played:
            self._judge(one, bounds)
        certificates = torch.maximum(self._worst, torch.stack([own.bound() for own in bounds], dim=1)) * self._blur
        certificates[~self._told_apart] = torch.nan
        return certificates

    def _play(self, rounds: Sequence[Round]) -> list[Played]:
        """Run all samples through the network of each of their rounds; rounds with the same parameters once."""
        played: list[Played] = []
        cells = self._cells(rounds)
        place, passed = torch.full((len(self._labels),), -1), None
        for number, one in enumerate(rounds):
            if one.parameters is not self._loaded:
                batches = [other.samples for other in rounds[number:] if other.parameters is one.parameters]
                rows = torch.cat(batches).unique()
                rows = rows[self._known[rows]]
                place[rows] = torch.arange(len(rows))
                passed = self._run(one.parameters, rows) if len(rows) else None
            here = one.samples[self._known[one.samples]]
            if passed is None or len(here) == 0:
                continue
            own = passed.take(place[here]).scaled(one.size / self._divisor(one))
            apart = [alone(*part) for part in zip(one.factors, own.h, own.v, strict=True)]
            differ = torch.full((len(here),), torch.inf, dtype=torch.float64)
            for cell in cells[here][cells[here] >= 0].unique().tolist():
                rows = (cells[here] == cell).nonzero()[:, 0]
                differ[rows] = self._differences(here[rows], own.take(rows))
            played.append(Played(one, here, own, torch.stack(apart, dim=1), differ))
        return played

    def _load(self, parameters: ModelTensors) -> None:
        if parameters is not self._loaded:
            self._network.load(parameters)
            self._loaded = parameters

    def _run(self, parameters: ModelTensors, rows: Tensor) -> Pass:
        self._load(parameters)
        for worker, layer in enumerate(self._layers):
            new = rows[self._blur[rows, worker].isnan()]
            if len(new):
                x = self._slices[worker][new]
                self._blur[new, worker] = data_of_inputs(self._network, worker, x, sees_data=layer.sees_data)
        return self._network.run([part[rows] for part in self._slices], self._labels[rows])

    def _suspect_some(self, played: Sequence[Played]) -> None:
        """Suspect the samples that no round shows alone though it could, or that one misses which shows all of its."""
        could = torch.zeros_like(self._suspect)
        seen = torch.zeros_like(self._suspect)
        for one in played:
            for worker, factors in enumerate(one.round.factors):
                passes = one.alone[:, worker] <= CERTIFIED
                seen[one.here, worker] |= passes
                could[one.here, worker] |= applies(factors)
                self._suspect[one.here, worker] |= ~passes & (factors.rank == one.round.size)
        self._suspect |= could & ~seen

    def _judge(self, one: Played, bounds: Sequence[Determined]) -> None:
        """Hold a round's samples against its gradients."""
        rest = self._rest(one) if self._needs_rest(one, bounds) else [None] * len(bounds)
        worst = torch.zeros(len(one.here), dtype=torch.float64)
        for worker, (own, factors) in enumerate(zip(bounds, one.round.factors, strict=True)):
            h, v = one.passed.h[worker], one.passed.v[worker]
            part, whole = own_parts(h, v, one.round.size), one.round.whole[worker].norm()
            left, residual = rest[worker], one.alone[:, worker]
            if left is not None:
                left = torch.maximum(left, ROUNDING * whole)  # the network here may round as the worker's did
                residual = torch.minimum(residual, left / part)
            own.add(one.here, factors, h, v, alone=one.alone[:, worker], part=part, rest=left)
            suspect = self._suspect[one.here, worker]
            others = one.round.size - int((~suspect).sum())
            if bool(((residual > CERTIFIED) & ~suspect).any()) and others:
                beyond = left_over(factors, h[~suspect], v[~suspect], others)
                left = torch.maximum(beyond, ROUNDING * whole) if left is None else left
                residual = torch.where(suspect, residual, torch.minimum(residual, beyond / part))
            tiny = CERTIFIED * part < ROUNDING * whole
            unseen = tiny & (left is not None and bool(left <= 10 * ROUNDING * whole))
            residual = torch.where(unseen, torch.nan, residual)
            self._worst[one.here, worker] = torch.fmax(self._worst[one.here, worker], residual)
            worst = torch.maximum(worst, residual.nan_to_num(torch.inf))
        self._told_apart[one.here] |= one.told_apart > CLEARLY * worst

    def _needs_rest(self, one: Played, bounds: Sequence[Determined]) -> bool:
        """Tell whether the batch as a whole is to be looked at: not where each sample is certain by itself."""
        if len(one.here) < one.round.size:
            return False
        for worker, (own, factors) in enumerate(zip(bounds, one.round.factors, strict=True)):
            if not own.roomy(factors) or bool((one.alone[:, worker] > CERTIFIED).any()):
                break
        else:
            return False
        # A backward pass through all layers tells nothing where the attacked ones are not explained
        for worker, factors in enumerate(one.round.factors):
            h, v = one.passed.h[worker], one.passed.v[worker]
            if not bool((left_over(factors, h, v, 0) <= CERTIFIED * own_parts(h, v, one.round.size)).any()):
                return False
        return True

    def _rest(self, one: Played) -> Sequence[Tensor | None]:
        self._load(one.round.parameters)
        slices = [part[one.here] for part in self._slices]
        predicted = self._network.gradients(slices, self._labels[one.here], self._divisor(one.round))
        pairs = zip(one.round.whole, predicted, strict=True)
        return together(
            [seen - self._sketch(at, row) for at, (seen, row) in enumerate(pairs)], one.passed, one.round.size
        )

    def _divisor(self, one: Round) -> float:
        """Return what a round's sum was divided by; where its labels' weights say so, those that are known."""
        known = one.samples[self._known[one.samples]]
        if not self._network.loss.hides_divisor or not len(known):
            return one.size
        return one.size * self._network.loss.divisor(self._labels[known]) / len(known)

    def _cells(self, rounds: Sequence[Round]) -> Tensor:
        """Return for each sample the number of its cell: samples that share all their rounds; -1 if it is alone."""
        if len(self._layers) == 1 or not rounds:
            return torch.full((len(self._labels),), -1)
        member = torch.zeros(len(rounds), len(self._labels), dtype=torch.bool)
        for at, one in enumerate(rounds):
            member[at, one.samples] = True
        _, cell, count = member.unique(dim=1, return_inverse=True, return_counts=True)
        return torch.where(count[cell] > 1, cell, -1)

    def _differences(self, samples: Tensor, passed: Pass) -> Tensor:
        """Return how much of what comes back would change if a slice of another of these stood in for a sample's own.

        Samples of a cell are told apart by nothing but what the network makes of them: where that is no more than is
        left unexplained, workers' slices may have been put together wrongly.
        """
        before = self._network.loss.u(self._logits(passed.z), self._labels[samples])
        size = before.norm(dim=1)
        least = torch.full((len(samples),), torch.inf, dtype=torch.float64)
        for worker, z in enumerate(passed.z):
            slices = self._slices[worker][samples].flatten(1)
            for other in range(len(samples)):
                there = [part if at != worker else z[other].expand_as(z) for at, part in enumerate(passed.z)]
                u = self._network.loss.u(self._logits(there), self._labels[samples])
                change = ((u - before).norm(dim=1) / size).double()
                same = (slices - slices[other]).norm(dim=1) <= CERTIFIED * slices.norm(dim=1)
                least = torch.where(same, least, torch.minimum(least, change))
        return least

    def _logits(self, z: Sequence[Tensor]) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self._network.top(torch.cat(list(z), dim=1))
        return logits
