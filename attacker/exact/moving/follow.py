"""One worker's data from rounds with different parameters: invert, predict how each h moved, correct, and again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

from attacker.exact.moving.correct import Meetings, Where, moved, outside, unmoved
from attacker.exact.moving.lengths import misfit, take_apart
from attacker.exact.moving.match import Unsettled, match, rounds_to_match
from attacker.exact.moving.trail import Trail
from attacker.exact.steps12.factors import Factors
from attacker.exact.steps12.threads import one_thread
from attacker.inversion import InversionOptions
from attacker.inversion.attempt import Chunk, Problem
from attacker.inversion.invert import chunk_size
from attacker.inversion.parallel import Tick, in_order, in_parallel
from attacker.inversion.spread import spread
from attacker.inversion.values import in_levels
from vfl.device import resolve_device

T = TypeVar("T")

ITERATIONS = 16
SETTLED = 5e-4
"""A sample whose h changes by less, relative, is done once its data fit it: near enough for rounding to do the rest."""
STEPS = 25
"""Polishing steps between two corrections."""
SIGNED = 0.3
"""The negative part of a unit vector above which it has values of both signs, and is not a blurred ReLU's."""
GROUPS = (32, 64, 128, 256, 512)
"""Samples that are matched together, the likeliest first and the rest last; after a group of which none comes to
explain its rounds no further one is tried."""
MATCHING = 8
"""What matching counts for in the progress, beside `ITERATIONS`."""
PATIENCE = 3
"""Corrections before a sample that does not fit counts as stuck: by then it is its basin that is wrong, not its h."""


@dataclass(frozen=True)
class Followed:
    """What became of a worker's samples."""

    x: Tensor
    """(samples, *shape), NaN where nothing leaked."""
    unexplained: Tensor
    """(samples,): over its rounds, each with its own parameters, the median of how badly h(x) fits their gradients."""


class Follower:
    """Follows one worker's samples through its rounds."""

    def __init__(
        self,
        trail: Trail,
        where: Where,
        shape: tuple[int, ...],
        sees_data: bool,
        options: InversionOptions,
        seed: int,
        device: str,
    ) -> None:
        self._trail, self._where, self._shape, self._options = trail, where, shape, options
        self._sees_data, self._place = sees_data, torch.device(resolve_device(device))
        self._meetings = Meetings(trail)
        self._groups = {t: torch.tensor(where.based(t)) for t in sorted(set(where.base))}
        count = len(where.base)
        self._x = torch.full((count, *shape), torch.nan)
        self._residual = torch.full((count,), torch.inf)
        self._changed = torch.zeros(count, dtype=torch.bool)
        self._moved: dict[int, Tensor] = {}
        self._h = [
            stop.factors.left.new_full((len(stop.batch), len(stop.factors.left)), torch.nan) for stop in trail.stops
        ]
        self._place_of = {(n, t): at for t, stop in enumerate(trail.stops) for at, n in enumerate(stop.batch.tolist())}
        self._chunk = options.chunk or chunk_size(shape, self._place)
        self._problem = Problem(trail.model, trail.layer, seed, str(self._place))

    def follow(self, progress: Callable[[int, int], None]) -> Followed:
        """Return the data of all samples."""
        targets = self._start()
        known = targets[:, 0].isfinite()
        quick = self._options.model_copy(update={"polish_steps": STEPS, "levels": 0})
        self._improve(targets, known, 0, quick)
        attempts, total = 1, ITERATIONS + MATCHING + 1
        for iteration in range(1, ITERATIONS + 1):
            progress(iteration, total)
            before, targets = targets, self._correct()
            change = (targets - before).norm(dim=1) / targets.norm(dim=1)
            fits = self._residual <= self._options.acceptable
            late = iteration >= PATIENCE
            hopeful = known & ((self._residual < self._options.hopeless) | (not late))  # else no data have such an h
            stuck = hopeful & ~fits & (change < self._residual) & late
            going = hopeful & (~fits | (change > SETTLED)) & ~stuck
            again = bool(stuck.any()) and attempts < self._options.attempts
            if (late and not bool(fits.any())) or (not bool(going.any()) and not again):
                break  # where nobody's data fit by now the first directions were too far off for all
            self._improve(targets, going, None, quick)
            if again:
                self._improve(targets, stuck, attempts, quick)
                attempts += 1
        self._improve(targets, known, None, quick)
        self._match(known, lambda done, of: progress(ITERATIONS + MATCHING * done // of, total))
        self._round(known)
        progress(total, total)
        return Followed(self._x, self._unexplained())

    def _match(self, known: Tensor, progress: Callable[[int, int], None]) -> None:
        """Move the data of samples for which the circle did not close until they explain several rounds together."""
        away = self._outside()
        left_open = (known & (away > SETTLED) & (away < self._options.hopeless)).nonzero()[:, 0]
        if self._sees_data or len(left_open) == 0:
            return
        shares, done = self._judged(outside), 0
        for chosen in left_open[away[left_open].argsort(stable=True)].tensor_split(list(accumulate(GROUPS))):

            def goes_on(more: int, before: int = done) -> None:
                progress(before + more, len(left_open))

            if len(chosen) == 0 or not self._match_some(chosen, away[chosen], shares, goes_on):
                return
            done += len(chosen)

    def _match_some(
        self, chosen: Tensor, away: Tensor, shares: Sequence[Tensor], progress: Callable[[int], None]
    ) -> bool:
        """Match some samples, keep what came nearer to its rounds, and tell whether any came right."""
        rounds = [
            rounds_to_match(self._where, n, {t: float(shares[t][self._place_of[n, t]]) for t in self._where.rounds[n]})
            for n in chosen.tolist()
        ]
        before = self._x[chosen]
        unsettled = Unsettled(chosen, rounds, before)
        self._x[chosen] = match(self._trail, unsettled, self._problem.seed, self._options, progress)
        self._changed[chosen] = True
        after = self._outside()[chosen]
        worse = ~(after < away)
        self._x[chosen[worse]] = before[worse]
        self._changed[chosen[worse]] = True
        return bool((after <= SETTLED).any())

    def _round(self, known: Tensor) -> None:
        """Give pixels the values that they can have where all rounds together are then explained better."""
        rounded = None if self._sees_data else in_levels(self._x, self._options.levels)
        if rounded is None:
            return
        away, free = self._outside(), self._x
        self._x = rounded
        self._changed |= known
        worse = ~(self._outside() < away)
        self._x = torch.where(worse.view(-1, *[1] * len(self._shape)), free, self._x)
        self._changed |= worse & known

    def _start(self) -> Tensor:
        """Return the first targets: directions as if nothing had moved."""
        targets = self._unknown()
        for t, members in self._groups.items():
            stop = self._trail.stops[t]
            directions = torch.stack(
                [unmoved(self._trail, self._where, self._meetings, n, t) for n in stop.batch.tolist()]
            )
            lengths, _ = take_apart(stop.factors, directions)
            directions, lengths = _upright(directions, lengths)
            usual = lengths[lengths > 0].median() if bool((lengths > 0).any()) else lengths.new_tensor(torch.nan)
            lengths = torch.where((lengths > usual / 3) & (lengths < usual * 3), lengths, usual)
            at = _places(stop.batch, members)
            targets[members] = directions[at] * lengths[at, None]
        return targets

    def _correct(self) -> Tensor:
        """Return better targets: all rounds of a sample together, the moves between them as the estimate has them."""
        changed = self._changed.clone()
        predicted = self._predicted()
        targets = self._unknown()
        with one_thread():  # thousands of products of small matrices
            for n in changed.nonzero()[:, 0].tolist():
                own = {r: predicted[r][self._place_of[n, r]] for r in self._where.rounds[n]}
                if bool(own[self._where.base[n]][0].isfinite()):
                    self._moved[n] = moved(self._trail, self._where, self._meetings, n, own)
        for t, members in self._groups.items():
            stop = self._trail.stops[t]
            h = predicted[t] @ stop.factors.left @ stop.factors.left.T
            at = _places(stop.batch, members)
            for place, n in zip(at.tolist(), members.tolist(), strict=True):
                if n in self._moved:
                    h[place] = self._moved[n]
            size = h.norm(dim=1)
            directions = (h / size[:, None]).nan_to_num(0.0)
            lengths, _ = take_apart(stop.factors, directions)
            lengths = torch.where((lengths > size / 2) & (lengths < size * 2), lengths, size)
            targets[members] = directions[at] * lengths[at, None]
        return targets

    def _predicted(self) -> list[Tensor]:
        """Return for each round the h that the estimate has in it, (batch, inputs)."""
        stops = self._trail.stops
        changed = [self._changed[stop.batch].nonzero()[:, 0] for stop in stops]
        work = [t for t, rows in enumerate(changed) if len(rows)]
        jobs = [partial(_represent, self._trail, t, self._x[stops[t].batch[changed[t]]]) for t in work]
        for t, h in zip(work, _results(jobs), strict=True):
            self._h[t][changed[t]] = h
        self._changed[:] = False
        return self._h

    def _improve(self, targets: Tensor, which: Tensor, number: int | None, options: InversionOptions) -> None:
        """Bring the data of some samples nearer to their targets: by a new attempt, or on from where they are."""
        work = [
            (t, chosen)
            for t, members in self._groups.items()
            for chosen in members[which[members]].split(self._chunk)
            if len(chosen)
        ]
        if self._sees_data:
            done = [(self._as_data(targets[chosen]), torch.zeros(len(chosen))) for _, chosen in work]
        else:
            done = in_order(spread([self._part(t, targets, chosen, number, options) for t, chosen in work], options))
        for (_, chosen), (x, residual) in zip(work, done, strict=True):
            better = torch.full_like(residual, number is None, dtype=torch.bool) | ~(residual >= self._residual[chosen])
            self._x[chosen[better]], self._residual[chosen[better]] = x[better], residual[better]
            self._changed[chosen[better]] = True

    def _as_data(self, targets: Tensor) -> Tensor:
        return targets.float().reshape(-1, *self._shape)

    def _part(self, t: int, targets: Tensor, chosen: Tensor, number: int | None, options: InversionOptions) -> Chunk:
        before = self._trail.stops[t].before
        return Chunk(self._problem, options, chosen, targets[chosen].float(), self._x[chosen], number, before)

    def _outside(self) -> Tensor:
        """Return for each sample the median share of its h outside of its rounds' spaces; NaN where there is none."""
        return self._medians(outside)

    def _unexplained(self) -> Tensor:
        """Return the same, or by how much its h is too long or too short for its rounds' biases where that is more."""
        with one_thread():
            return self._medians(misfit)

    def _medians(self, judge: Callable[[Factors, Tensor], Tensor]) -> Tensor:
        """Return for each sample the median over its rounds of how far its h is from the round's gradient."""
        judged = self._judged(judge)
        medians = [
            torch.stack([judged[t][self._place_of[n, t]] for t in rounds]).median()
            for n, rounds in enumerate(self._where.rounds)
        ]
        return torch.stack(medians)

    def _judged(self, judge: Callable[[Factors, Tensor], Tensor]) -> list[Tensor]:
        """Return for each round how far its batch's h are from its gradient."""
        return [judge(stop.factors, h) for stop, h in zip(self._trail.stops, self._predicted(), strict=True)]

    def _unknown(self) -> Tensor:
        return torch.full((len(self._x), len(self._trail.stops[0].factors.left)), torch.nan, dtype=torch.float64)


def _upright(directions: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Turn directions round whose length came out negative, if they have values of both signs: a ReLU's have not."""
    wrong = (lengths < 0) & (directions.clamp_max(0).norm(dim=1) > SIGNED)
    sign = torch.where(wrong, -1.0, 1.0).to(lengths.dtype)
    return directions * sign[:, None], lengths * sign


def _represent(trail: Trail, t: int, x: Tensor, tick: Tick) -> Tensor:
    tick()
    return trail.representations(t, x)


def _results(jobs: Sequence[Callable[[Tick], T]]) -> list[T]:
    """Run jobs on all cores; their results in order."""
    return in_order(in_parallel(jobs, torch.get_num_threads()))


def _places(batch: Tensor, members: Tensor) -> Tensor:
    """Return where in a batch samples are."""
    return (batch[None] == members[:, None]).to(torch.uint8).argmax(dim=1)
