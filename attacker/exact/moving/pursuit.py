"""One worker's data from rounds with different parameters: invert, predict how each h moved, correct, and again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from attacker.exact.moving.correct import Meetings, Where, lengths_and_v, outside
from attacker.exact.moving.estimate import Estimate
from attacker.exact.moving.match import Unsettled, match_rounds, rounds_to_match
from attacker.exact.moving.trail import Trail
from attacker.inversion import InversionOptions
from attacker.inversion.attempt import Chunk, Problem
from attacker.inversion.invert import chunk_size
from attacker.inversion.spread import in_order, spread
from attacker.inversion.values import in_levels
from vfl.device import one_thread, resolve_device

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


class Pursuit:
    """Follows one worker's samples through its rounds."""

    def __init__(
        self,
        trail: Trail,
        where: Where,
        shape: tuple[int, ...],
        *,
        sees_data: bool,
        options: InversionOptions,
        seed: int,
        device: str,
    ) -> None:
        self._trail, self._where, self._shape, self._options = trail, where, shape, options
        self._sees_data, self._place = sees_data, torch.device(resolve_device(device))
        self._meetings = Meetings(trail, where)
        self._groups = {t: torch.tensor(where.based(t)) for t in sorted(set(where.base))}
        self._estimate = Estimate(trail, where, shape)
        self._residual = torch.full((len(where.base),), torch.inf)
        self._moved: dict[int, Tensor] = {}
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
                break  # where no data fit by now the first directions were too far off for all
            self._improve(targets, going, None, quick)
            if again:
                self._improve(targets, stuck, attempts, quick)
                attempts += 1
        self._improve(targets, known, None, quick)
        self._match(known, lambda done, of: progress(ITERATIONS + MATCHING * done // of, total))
        self._round(known)
        progress(total, total)
        return Followed(self._estimate.x)

    def _match(self, known: Tensor, progress: Callable[[int, int], None]) -> None:
        """Move the data of samples for which the circle did not close until they explain several rounds together."""
        away = self._estimate.medians(outside)
        left_open = (known & (away > SETTLED) & (away < self._options.hopeless)).nonzero()[:, 0]
        if self._sees_data or len(left_open) == 0:
            return
        shares, done = self._estimate.judged(outside), 0
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
        estimate = self._estimate
        rounds = [rounds_to_match(self._where, n, estimate.own(shares, n)) for n in chosen.tolist()]
        before = estimate.x[chosen]
        unsettled = Unsettled(chosen, rounds, before)
        seed, options = self._problem.seed, self._options
        estimate.put(chosen, match_rounds(self._trail, unsettled, seed=seed, options=options, progress=progress))
        after = estimate.medians(outside)[chosen]
        worse = ~(after < away)
        estimate.put(chosen[worse], before[worse])
        return bool((after <= SETTLED).any())

    def _round(self, known: Tensor) -> None:
        """Give pixels the values that they can have where all rounds together are then explained better."""
        estimate = self._estimate
        rounded = None if self._sees_data else in_levels(estimate.x, self._options.levels)
        if rounded is None:
            return
        away, free = estimate.medians(outside), estimate.x
        estimate.x = rounded
        estimate.changed |= known
        worse = ~(estimate.medians(outside) < away)
        estimate.x = torch.where(worse.view(-1, *[1] * len(self._shape)), free, estimate.x)
        estimate.changed |= worse & known

    def _start(self) -> Tensor:
        """Return the first targets: directions as if nothing had moved."""
        targets = self._unknown()
        for t, members in self._groups.items():
            stop = self._trail.stops[t]
            directions = torch.stack([self._meetings.unmoved(n, t) for n in stop.batch.tolist()])
            lengths, _ = lengths_and_v(stop.factors, directions)
            directions, lengths = _upright(directions, lengths)
            usual = lengths[lengths > 0].median() if bool((lengths > 0).any()) else lengths.new_tensor(torch.nan)
            lengths = torch.where((lengths > usual / 3) & (lengths < usual * 3), lengths, usual)
            at = _places(stop.batch, members)
            targets[members] = directions[at] * lengths[at, None]
        return targets

    def _correct(self) -> Tensor:
        """Return better targets: all rounds of a sample together, the moves between them as the estimate has them."""
        changed = self._estimate.changed.clone()
        predicted = self._estimate.representations()
        targets = self._unknown()
        with one_thread():  # thousands of products of small matrices
            for n in changed.nonzero()[:, 0].tolist():
                own = self._estimate.own(predicted, n)
                if bool(own[self._where.base[n]][0].isfinite()):
                    self._moved[n] = self._meetings.moved(n, own)
        for t, members in self._groups.items():
            stop = self._trail.stops[t]
            h = predicted[t] @ stop.factors.left @ stop.factors.left.T
            at = _places(stop.batch, members)
            for place, n in zip(at.tolist(), members.tolist(), strict=True):
                if n in self._moved:
                    h[place] = self._moved[n]
            size = h.norm(dim=1)
            directions = (h / size[:, None]).nan_to_num(0.0)
            lengths, _ = lengths_and_v(stop.factors, directions)
            lengths = torch.where((lengths > size / 2) & (lengths < size * 2), lengths, size)
            targets[members] = directions[at] * lengths[at, None]
        return targets

    def _improve(self, targets: Tensor, which: Tensor, number: int | None, options: InversionOptions) -> None:
        """Bring the data of some samples nearer to their targets: by a new attempt, or on from where they are."""
        work = [
            (t, chosen)
            for t, members in self._groups.items()
            for chosen in members[which[members]].split(self._chunk)
            if len(chosen)
        ]
        if self._sees_data:
            data = targets.float().reshape(-1, *self._shape)
            done = [(data[chosen], torch.zeros(len(chosen))) for _, chosen in work]
        else:
            chunks = [
                Chunk(
                    self._problem, options, chosen, targets[chosen].float(), self._estimate.x[chosen], number,
                    parameters=self._trail.stops[t].before,
                )
                for t, chosen in work
            ]  # fmt: skip
            done = in_order(spread(chunks, options))
        for (_, chosen), (x, residual) in zip(work, done, strict=True):
            better = torch.full_like(residual, number is None, dtype=torch.bool) | ~(residual >= self._residual[chosen])
            self._estimate.put(chosen[better], x[better])
            self._residual[chosen[better]] = residual[better]

    def _unknown(self) -> Tensor:
        return torch.full((len(self._residual), len(self._trail.stops[0].factors.left)), torch.nan, dtype=torch.float64)


def _upright(directions: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Turn directions round whose length came out negative, if they have values of both signs: a ReLU's have not."""
    wrong = (lengths < 0) & (directions.clamp_max(0).norm(dim=1) > SIGNED)
    sign = torch.where(wrong, -1.0, 1.0).to(lengths.dtype)
    return directions * sign[:, None], lengths * sign


def _places(batch: Tensor, members: Tensor) -> Tensor:
    """Return where in a batch samples are."""
    return (batch[None] == members[:, None]).to(torch.uint8).argmax(dim=1)
