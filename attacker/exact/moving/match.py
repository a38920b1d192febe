"""The end of the way: data moved until they explain the gradients of several rounds, each with its own parameters."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain

import torch
from torch import Tensor, nn

from attacker.exact.moving.correct import Where
from attacker.exact.moving.trail import Trail
from attacker.inversion import InversionOptions
from attacker.inversion.attempt import Tick, attempt, polish
from attacker.inversion.pooling import Sharpness, SoftenedPooling
from attacker.inversion.spread import in_parallel
from vfl.maths.least_squares import beyond
from vfl.models.layers import representation

ROUNDS, NEAR = 4, 6
"""Rounds that are matched together, of so many nearest to the base: two share other samples too, these hardly any."""
CHUNK = 64
"""Samples worked on together: many, so that every round's parameters are used for several of them."""
STEPS = 100
TRIAL = 8
"""Samples of a chunk, the likeliest, with which a new attempt begins: where it helps none of them it ends."""
SHORTEST = 0.5
"""The share of its length at the start that h may fall to before that counts as an error."""


@dataclass(frozen=True)
class SeveralRounds:
    """What is left of each sample's h outside of its rounds' gradients, relative to its length."""

    trail: Trail
    models: dict[int, nn.Module]
    rounds: tuple[tuple[int, ...], ...]
    lengths: Tensor
    """(samples, rounds)."""

    @classmethod
    def of(cls, trail: Trail, rounds: Sequence[tuple[int, ...]], x: Tensor) -> "SeveralRounds":
        """Match as many rounds for each sample, with the lengths that the data have so far."""
        models = {t: trail.model_at(t) for t in sorted({t for own in rounds for t in own})}
        start = cls(trail, models, tuple(rounds), torch.ones(len(rounds), len(rounds[0])))
        with torch.no_grad():
            return replace(start, lengths=start._apart(x)[1].clamp_min(1e-20))

    def rows(self, index: Tensor) -> "SeveralRounds":
        """Return the same for some of the samples."""
        rounds = tuple(self.rounds[n] for n in index.tolist())
        return replace(self, rounds=rounds, lengths=self.lengths[index])

    def errors(self, x: Tensor, sharpness: Sharpness) -> Tensor:
        """Return the parts outside, differentiable, max-pooling's gradient softened."""
        away, lengths = self._apart(x, sharpness)
        # a slice that fades away would be in every space
        shrunk = (lengths / self.lengths - SHORTEST).clamp_max(0)
        errors: Tensor = torch.cat([away, shrunk], dim=1) / math.sqrt(self.lengths.shape[1])
        return errors

    def residuals(self, x: Tensor) -> Tensor:
        """Return each sample's share outside."""
        with torch.no_grad():
            residuals: Tensor = self._apart(x)[0].norm(dim=1) / math.sqrt(self.lengths.shape[1])
        return residuals

    @cached_property
    def _by_round(self) -> list[tuple[int, Tensor, Tensor]]:
        """Return for each round which samples are in it, and which of their rounds it is."""
        places: dict[int, list[tuple[int, int]]] = {}
        for sample, own in enumerate(self.rounds):
            for at, t in enumerate(own):
                places.setdefault(t, []).append((sample, at))
        pairs = {t: torch.tensor(found) for t, found in places.items()}
        return [(t, found[:, 0], found[:, 1]) for t, found in pairs.items()]

    def _apart(self, x: Tensor, sharpness: Sharpness = math.inf) -> tuple[Tensor, Tensor]:
        """Return the parts outside (samples, rounds x inputs) and the lengths of h (samples, rounds)."""
        parts: list[Tensor] = []
        sizes: list[Tensor] = []
        for t, samples, at in self._by_round:
            with SoftenedPooling(sharpness[samples] if isinstance(sharpness, Tensor) else sharpness):
                h = representation(self.models[t], self.trail.layer, x[samples])
            left = self.trail.stops[t].factors.left.to(h.dtype)
            parts.append(beyond(left, h) / self.lengths[samples, at, None])
            sizes.append(h.norm(dim=1))
        order = torch.cat([samples * len(self.rounds[0]) + at for _, samples, at in self._by_round]).argsort()
        away, lengths = torch.cat(parts)[order], torch.cat(sizes)[order]
        return away.reshape(len(x), -1), lengths.reshape(len(x), -1)


@dataclass(frozen=True)
class Unsettled:
    """Samples to match: their numbers, the rounds of each, and their data so far."""

    samples: Tensor
    rounds: Sequence[tuple[int, ...]]
    x: Tensor

    def rows(self, index: Tensor) -> "Unsettled":
        """Return some of them."""
        return Unsettled(self.samples[index], [self.rounds[at] for at in index.tolist()], self.x[index])


def match_rounds(
    trail: Trail, unsettled: Unsettled, *, seed: int, options: InversionOptions, progress: Callable[[int], None]
) -> Tensor:
    """Return data of the samples that explain their rounds better; `progress` hears how many are done."""
    parts = torch.arange(len(unsettled.samples)).split(CHUNK)
    jobs = [partial(_matched, trail, unsettled.rows(some), seed=seed, options=options) for some in parts]
    found, done = unsettled.x.clone(), 0
    with closing(in_parallel(jobs, torch.get_num_threads())) as looks:
        for number, moved in chain.from_iterable(looks):
            found[parts[number]] = moved
            done += len(moved)
            progress(done)
    return found


def _matched(trail: Trail, unsettled: Unsettled, tick: Tick, *, seed: int, options: InversionOptions) -> Tensor:
    goal = SeveralRounds.of(trail, unsettled.rounds, unsettled.x)
    options = options.model_copy(update={"polish_steps": STEPS, "levels": 0})
    found, residual = polish(goal, unsettled.x, options, tick)
    for number in range(1, options.attempts):
        wrong = (residual > options.acceptable).nonzero()[:, 0]
        for some in wrong[residual[wrong].argsort(stable=True)].tensor_split([TRIAL]):
            if len(some) == 0:
                break
            again, left = attempt(
                goal.rows(some), found[some], unsettled.samples[some],
                number=number, seed=seed, options=options, tick=tick,
            )  # fmt: skip
            better = left < residual[some]
            found[some[better]], residual[some[better]] = again[better], left[better]
            if not bool((left <= options.acceptable).any()):
                break
    return found


def rounds_to_match(where: Where, n: int, away: Mapping[int, Tensor]) -> tuple[int, ...]:
    """Return the rounds of a sample, near its base, that its data fit best: where its v was weak it hardly shows.

    `away` has for each of its rounds how far they are outside.
    """
    near = sorted(where.rounds[n], key=lambda t: abs(t - where.base[n]))[:NEAR]
    return tuple(sorted(near, key=lambda t: float(away[t]))[:ROUNDS])
