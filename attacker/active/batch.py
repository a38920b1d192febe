"""One batch, taken apart: rounds that isolate its rows at every worker, then rounds that measure each of them again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacker.active.line import ROUNDED, SHARE, Groups, Line
from attacker.active.network import GAIN, Counting, Head, Network, Telling
from attacker.active.samples import Samples, Told, put_together
from attacker.active.sight import Sight, drawn_direction, sight_of
from vfl.observation import ModelTensors, Observation
from vfl.recovery import CERTIFIED

BENDS = 16
"""Of the line by which a worker tells the others of its rows."""
TOLD = 2.0
"""Logits that it tells, either way."""
NARROW = 0.01
"""Rows that are nearer together than that are spread no further: a worker refuses parameters beyond all measure."""
AGREES = 3e-3
"""How far a row may be from what a measurement has for it, relative to its size; else it was another that was seen."""

USUAL = 0.95
"""The share of all differences of two determinations that are no larger than rounding is taken to be."""
FAR = 3.0
"""What differs by so many times as much was of another row."""
STUCK = 2
"""After so many measurements that settled nothing another worker tells."""
CYCLES = 2
"""So often every worker tells, as long as samples are left; two more brought none."""
AT_FIRST = 2.5
"""How often each row is measured, at the most, when a worker tells for the first time."""


@dataclass(frozen=True)
class Measured:
    """What a round showed of every worker's groups."""

    teller: int
    telling: tuple[Telling | None, float]
    """What it told of its rows, and the bias."""
    sums: list[Tensor]
    """By worker: of each group the sum of what flows back to its rows, NaN where it was not seen."""
    errors: list[Tensor]
    """By worker: how far each group's row is from what was seen, relative to its size; NaN likewise."""


@dataclass(frozen=True)
class Apart:
    """A batch that was taken apart, in no order: of each sample every worker's row, NaN where it is not known."""

    rows: list[Tensor]
    errors: Tensor
    """(samples, workers): how far two determinations of a row differ, relative to its size; NaN: not known."""
    one: Tensor
    """Whether a sample is of the one class."""


class Batch:
    """The state of the attack on one batch."""

    def __init__(self, network: Network, indices: Tensor, random: torch.Generator, *, measurements: int) -> None:
        self.indices, self.problem, self.done = indices, "", False
        self.rounds: list[int] = []
        self._network, self._random, self._measurements = network, random, measurements
        self._lines = [Line(drawn_direction(one.features, random), len(indices)) for one in network.bottoms]
        self._thresholds: list[Tensor] = []
        self._groups: list[Groups] = []
        """By worker; empty while rows are being isolated."""
        self._rounded: list[list[Tensor]] = [[] for _ in network.bottoms]
        """By worker, from measurements: what rounding leaves of sums, as far as determinations of a row differ."""
        self._tellers: list[int] = []
        """The workers that have told, in turn; the last one tells now."""
        self._telling: tuple[Telling | None, float] = (None, 0.0)
        self._sights: list[Sight] = []
        self._measured: list[Measured] = []
        self._left: list[int] = []
        """After each measurement since that worker tells, how many groups were to be measured once more."""
        self._together: tuple[int, Samples] | None = None
        """The samples, as of so many measurements."""
        self._proposed: ModelTensors | None = None

    def propose(self) -> ModelTensors:
        """Return the parameters of the next round; the same until it is observed."""
        if self._proposed is None:
            self._proposed = self._measuring() if self._groups else self._isolating()
        return self._proposed

    def observe(self, observation: Observation) -> None:
        """Take in a round that was played as proposed."""
        self.rounds.append(observation.round)
        self._proposed = None
        scale = len(self.indices) / GAIN
        seen = [
            dense.gradients(own) * scale
            for dense, own in zip(self._network.bottoms, observation.gradients.bottoms, strict=True)
        ]
        if self._groups:
            self._measure(seen)
        else:
            self._isolate(seen)

    def apart(self) -> Apart | None:
        """Return the batch taken apart as far as it is; None before every worker's rows are isolated."""
        if not self._groups:
            return None
        found, rows = self._samples(), []
        samples, known = len(self.indices), len(found.groups)
        errors = torch.full((samples, len(self._groups)), torch.nan, dtype=torch.float64)
        for worker, own in enumerate(self._groups):
            of = found.groups[:, worker]
            row = torch.full((samples, own.x.shape[1]), torch.nan, dtype=torch.float64)
            row[:known], errors[:known, worker] = own.x[of], self._errors(worker)[of]
            rows.append(row)
        one = torch.zeros(samples, dtype=torch.bool)
        one[:known] = found.one
        return Apart(rows, errors, one)

    def _isolating(self) -> ModelTensors:
        pairs = list(zip(self._network.bottoms, self._lines, strict=True))
        self._thresholds = [line.next_thresholds(dense.units) for dense, line in pairs]
        bottoms = [
            dense.parameters(Counting(line.direction, thresholds))
            for (dense, line), thresholds in zip(pairs, self._thresholds, strict=True)
        ]
        return self._network.parameters(bottoms, Head.one_against_all(self._network.classes, _logit(SHARE)))

    def _isolate(self, seen: list[Tensor]) -> None:
        for line, thresholds, beyond in zip(self._lines, self._thresholds, seen, strict=True):
            line.add(thresholds, beyond[: len(thresholds)])
            self.problem = self.problem or line.problem or ""
        if self.problem:
            self.done = True
        elif all(line.divided for line in self._lines):
            self._groups = [line.groups().merged() for line in self._lines]
            self._tellers = [self._order[0]]

    @property
    def _order(self) -> list[int]:
        """The workers as they tell: the one whose rows are told of best by all others, the most different, last."""
        return sorted(range(len(self._groups)), key=lambda worker: len(self._groups[worker]))

    @property
    def _teller(self) -> int:
        return self._tellers[-1]

    def _units(self, worker: int) -> int:
        """Return how many units of a worker are left to count with."""
        tells = len(self._groups) > 1 and worker == self._teller
        return self._network.bottoms[worker].units - (BENDS if tells else 0)

    def _measuring(self) -> ModelTensors:
        """Choose what is told, and which groups are measured along which directions."""
        telling, bias = None, _logit(SHARE)
        if len(self._groups) > 1:
            rows = self._samples().open_rows(self._teller, self._groups[self._teller])
            telling, bias = _spread(rows, drawn_direction(rows.shape[1], self._random)), -TOLD
        self._telling = telling, bias
        wanted = self._wanted()
        self._sights = [
            sight_of(
                own.x, wanted[worker], _times(self._measured, worker, own), self._units(worker), random=self._random
            )
            for worker, own in enumerate(self._groups)
        ]
        bottoms = [
            dense.parameters(Counting(sight.direction, sight.thresholds), telling if worker == self._teller else None)
            for worker, (dense, sight) in enumerate(zip(self._network.bottoms, self._sights, strict=True))
        ]
        return self._network.parameters(bottoms, Head.one_against_all(self._network.classes, bias))

    def _wanted(self) -> list[Tensor]:
        """Return by worker which groups are to be measured once more: not seen yet, or of which it is open whose."""
        samples, wanted = self._samples(), []
        for worker, own in enumerate(self._groups):
            shown = samples.shown.get((self._teller, worker), torch.full((len(own),), -1))
            is_open = (shown < 0) & (own.counts == 1) & (samples.left_of(worker, own) > 0)
            wanted.append(self._errors(worker).isnan() | (is_open & (worker != self._teller)))
        return wanted

    def _measure(self, seen: list[Tensor]) -> None:
        sums, errors = [], []
        for worker, (own, sight) in enumerate(zip(self._groups, self._sights, strict=True)):
            beyond = seen[worker][self._network.bottoms[worker].units - self._units(worker) :]
            between = beyond[sight.low] - beyond[sight.high]
            rows, strength = between[:, :-1] / between[:, -1:], between[:, -1].abs()
            before, either = own.x[sight.groups], 1 / own.strength[sight.groups] + 1 / strength
            off = (rows - before).norm(dim=1) / own.sizes[sight.groups]
            off[~(off < AGREES + ROUNDED * either + own.apart[sight.groups]) | sight.crowded] = torch.nan
            self._rounded[worker].append((off / either)[~off.isnan()])
            rounding = _rounding(torch.cat(self._rounded[worker]))
            off[off > FAR * rounding * either + own.apart[sight.groups]] = torch.nan
            there = ~off.isnan()
            self._groups[worker] = replace(own, rounding=rounding).seen_again(
                sight.groups[there], rows[there], strength[there]
            )
            error, total = (torch.full((len(own),), torch.nan, dtype=torch.float64) for _ in range(2))
            total[sight.groups] = torch.where(there, between[:, -1], torch.nan)
            error[sight.groups] = torch.where(off > CERTIFIED, torch.nan, off)
            sums.append(total)
            errors.append(error)
        self._measured.append(Measured(self._teller, self._telling, sums, errors))
        self._left.append(sum(int(one.sum()) for one in self._wanted()))
        stuck = len(self._left) > STUCK and self._left[-1] == self._left[-1 - STUCK]
        each = max(-(-len(own) // max(1, self._units(worker) // 2)) for worker, own in enumerate(self._groups))
        again = len(self._tellers) > len(self._groups)
        if stuck or self._left[-1] == 0 or len(self._left) >= (self._measurements if again else AT_FIRST) * each:
            self._go_on()

    def _go_on(self) -> None:
        """Let another worker tell, if samples are left that it may part; else the batch is done."""
        order, found = self._order, len(self._samples().groups)
        self.done = found == len(self.indices) or len(self._tellers) == CYCLES * len(order)
        self._tellers.append(order[len(self._tellers) % len(order)])
        self._left = []

    def _samples(self) -> Samples:
        """Put the samples together as far as they were told of."""
        if self._together is None or self._together[0] != len(self._measured):
            told = [_told_by(teller, self._measured, self._groups) for teller in set(self._tellers)]
            self._together = len(self._measured), put_together(self._groups, told)
        return self._together[1]

    def _errors(self, worker: int) -> Tensor:
        """Return how far a group's row is from the measurements that agree with it; NaN where none does."""
        own = self._groups[worker]
        error = torch.full((len(own),), torch.nan, dtype=torch.float64)
        for one in self._measured:
            error = torch.fmax(error, one.errors[worker])
        return torch.where(error.isnan(), error, torch.maximum(error, own.error))


def _rounding(seen: Tensor) -> float:
    """Return what float32 leaves of the sums of a worker: more where its columns have few large values."""
    return max(ROUNDED, float(seen.quantile(USUAL))) if len(seen) else ROUNDED


def _times(measured: Sequence[Measured], worker: int, own: Groups) -> Tensor:
    """Return how often each of a worker's groups was seen in a measurement."""
    times = torch.zeros(len(own), dtype=torch.int64)
    for one in measured:
        times += ~one.errors[worker].isnan()
    return times


def _told_by(teller: int, measured: Sequence[Measured], groups: Sequence[Groups]) -> Told:
    """Return what a worker has told so far."""
    told = [one for one in measured if one.teller == teller]
    shares, slack = (torch.zeros(len(groups[teller]), len(told), dtype=torch.float64) for _ in range(2))
    sums = [torch.zeros(len(own), len(told), dtype=torch.float64) for own in groups]
    for place, one in enumerate(told):
        shares[:, place], slack[:, place] = _shares(groups[teller], *one.telling)
        for worker, own in enumerate(groups):
            sums[worker][:, place] = one.sums[worker] + own.ones
    return Told(teller, shares, slack, tuple(sums))


def _shares(groups: Groups, telling: Telling | None, bias: float) -> tuple[Tensor, Tensor]:
    """Return the shares that rows make, and how far off they may be."""
    if telling is None:
        share = torch.full((len(groups),), 1 / (1 + math.exp(-bias)), dtype=torch.float64)
        return share, torch.full_like(share, ROUNDED)
    direction = telling.direction.double()
    step = groups.known_along(direction).unsqueeze(1) * direction
    low, middle, high = (torch.sigmoid(telling(rows) + bias) for rows in (groups.x - step, groups.x, groups.x + step))
    return middle, ROUNDED + torch.maximum((high - middle).abs(), (middle - low).abs())


def _spread(rows: Tensor, direction: Tensor) -> Telling:
    """Return a telling that spreads these rows evenly over the logits that are told, as far as its bends go."""
    along = rows @ direction.double()
    knots = along.quantile(torch.linspace(0, 1, BENDS, dtype=torch.float64))
    span = max(float(knots[-1] - knots[0]), NARROW)
    rises = (2 * TOLD / (BENDS - 1)) / knots.diff().clamp(min=1e-3 * span)
    bends = torch.cat([knots[:1] - 1e-3 * span, knots[1:]])
    slopes = torch.cat([rises[:1], rises.diff(), -rises[-1:]])
    return Telling(direction, bends.float(), slopes.float())


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
