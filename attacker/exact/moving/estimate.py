"""The data of one worker's samples so far, and what they are to the attacked layer in every round."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from attacker.exact.moving.correct import Where
from attacker.exact.moving.trail import Trail
from attacker.inversion.attempt import Tick
from attacker.inversion.spread import in_order, in_parallel
from vfl.maths.factors import Factors


class Estimate:
    """Data, NaN where nothing is known; the h of each round are computed anew only where the data changed."""

    def __init__(self, trail: Trail, where: Where, shape: tuple[int, ...]) -> None:
        self._trail, self._where = trail, where
        count = len(where.base)
        self.x = torch.full((count, *shape), torch.nan)
        self.changed = torch.zeros(count, dtype=torch.bool)
        """Whose data changed since the last look at their h."""
        self._h = [
            stop.factors.left.new_full((len(stop.batch), len(stop.factors.left)), torch.nan) for stop in trail.stops
        ]
        self._place_of = {(n, t): at for t, stop in enumerate(trail.stops) for at, n in enumerate(stop.batch.tolist())}

    def put(self, samples: Tensor, x: Tensor) -> None:
        """Change the data of some samples."""
        self.x[samples] = x
        self.changed[samples] = True

    def own(self, rounds: Sequence[Tensor], n: int) -> dict[int, Tensor]:
        """Return a sample's entry in each of its rounds, of what there is for every round's batch."""
        return {t: rounds[t][self._place_of[n, t]] for t in self._where.rounds[n]}

    def representations(self) -> list[Tensor]:
        """Return for each round the h that the estimate has in it, (batch, inputs)."""
        stops = self._trail.stops
        changed = [self.changed[stop.batch].nonzero()[:, 0] for stop in stops]
        work = [t for t, rows in enumerate(changed) if len(rows)]
        jobs = [partial(_represent, self._trail, t, self.x[stops[t].batch[changed[t]]]) for t in work]
        for t, h in zip(work, in_order(in_parallel(jobs, torch.get_num_threads())), strict=True):
            self._h[t][changed[t]] = h
        self.changed[:] = False
        return self._h

    def medians(self, judge: Callable[[Factors, Tensor], Tensor]) -> Tensor:
        """Return for each sample the median over its rounds of how far its h is from the round's gradient."""
        judged = self.judged(judge)
        samples = range(len(self._where.rounds))
        return torch.stack([torch.stack(list(self.own(judged, n).values())).median() for n in samples])

    def judged(self, judge: Callable[[Factors, Tensor], Tensor]) -> list[Tensor]:
        """Return for each round how far its batch's h are from its gradient."""
        return [judge(stop.factors, h) for stop, h in zip(self._trail.stops, self.representations(), strict=True)]


def _represent(trail: Trail, t: int, x: Tensor, tick: Tick) -> Tensor:
    tick()
    return trail.representations(t, x)
