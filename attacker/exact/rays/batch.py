"""The samples of a batch as they are found: pairs of h and v that agree, and rays that wait for their v."""

from dataclasses import dataclass, replace

import numpy as np

from attacker.exact.rays.partners import DISAGREES, Ban, Network, Partner, bans, orthogonal, partner_of
from attacker.exact.rays.space import Array, Space
from attacker.exact.rays.zeros import Ray, blunt, sharpen

MIXED = 1e-4
"""How much of another sample, in units of the sample itself, v may see in an h that is called certain."""
FIRST_SHARE, LEAST_SHARE = 0.6, 0.15
"""A ray needs this share of the most zeros that another has; less and less where searches fail."""


def enough_zeros(samples: int) -> float:
    """Return how many zeros show a sample of so many: any vertex of the cone has one fewer than there are samples."""
    return 1.5 * samples + 5


@dataclass(frozen=True)
class Sample:
    """A ray, what its v cannot be, and its partner once it is known."""

    ray: Ray
    own: tuple[Ban, ...]
    partner: Partner | None = None
    certain: bool = False


class Batch:
    """Samples found: with a partner that agrees, in the order in which they were found, or waiting for one."""

    def __init__(self, space: Space, network: Network) -> None:
        self._space, self._network = space, network
        self.pairs: list[Sample] = []
        self.waiting: list[Sample] = []
        self.share = FIRST_SHARE

    @property
    def all(self) -> list[Sample]:
        """Pairs first."""
        return [*self.pairs, *self.waiting]

    def partners(self) -> Array:
        """Return f (pairs, rank)."""
        return np.array([s.partner.f for s in self.pairs if s.partner]).reshape(-1, self._space.rank)

    def offer(self, e: Array, last: bool = False) -> bool:
        """Keep the ray near e if it is new, its zeros are many or nothing else is left, and no v contradicts."""
        ray = sharpen(self._space, e) or (
            sharpen(self._space, e, orthogonal(self.partners() * self._space.values, self._space.rank))
            if self.pairs
            else None
        )
        if ray is None and last:
            ray = blunt(self._space, e)
        if ray is None or any(ray.same(other.ray) for other in self.all):
            return False
        zeros = max((int(other.ray.zeros.sum()) for other in self.all), default=0)
        if not last and ray.zeros.sum() < max(enough_zeros(self._space.rank), self.share * zeros):
            return False
        sample = Sample(ray, bans(self._space, ray, self._network))
        partner = self._partner(sample, [])
        if partner is not None and partner.agrees:
            return self._pair(replace(sample, partner=partner))
        if partner is not None and partner.residual > DISAGREES:
            return False
        self.waiting.append(sample)
        return True

    def _pair(self, pair: Sample) -> bool:
        """Keep a pair; of two with one v, that with more zeros: the other is its sample and some of others."""
        for at, other in enumerate(self.pairs):
            if pair.partner and other.partner and pair.partner.same(other.partner, self._space):
                if pair.ray.zeros.sum() > other.ray.zeros.sum():
                    self.pairs[at] = pair
                return False
        self.pairs.append(pair)
        return True

    def _partner(self, sample: Sample, others: list[Sample]) -> Partner | None:
        """Return the partner that the ban alone determines, or the ban and those that are orthogonal to it."""
        rank = self._space.rank
        known = [s.ray.e for s in [*self.pairs, *others] if not s.ray.loose]
        bases = [np.eye(rank)]
        if known:
            bases.append(orthogonal(np.array(known) * self._space.values, rank))
        found = None
        for basis in bases:
            found = partner_of(self._space, sample.ray, sample.own, basis) or found
            if found is not None and (found.agrees or found.residual > DISAGREES):
                break
        return found

    def settle(self) -> None:
        """Look for the partners of those that wait: of each by itself, then of all at once."""
        while self.waiting and self._sort([self._partner(sample, []) for sample in self.waiting]):
            pass
        while self.waiting:
            partners = [self._partner(s, [other for other in self.waiting if other is not s]) for s in self.waiting]
            bad = [partner is not None and partner.residual > DISAGREES for partner in partners]
            if not any(bad):
                self._sort(partners)
                return
            # A false ray spoils the partners of the others: the newest, or that with the fewest zeros if most are bad
            told = sum(partner is not None for partner in partners)
            newest = bad[-1] and sum(bad) <= max(1, 0.3 * told)
            self.waiting.pop(-1 if newest else int(np.argmin([s.ray.zeros.sum() for s in self.waiting])))

    def _sort(self, partners: list[Partner | None]) -> bool:
        """Make pairs of those whose partners agree, forget those whose partners contradict; tell if any did."""
        before = list(zip(self.waiting, partners, strict=True))
        for sample, p in before:
            if p is not None and p.agrees:
                self._pair(replace(sample, partner=p))
        self.waiting = [sample for sample, p in before if p is None or not (p.agrees or p.residual > DISAGREES)]
        return len(self.waiting) < len(before)

    def finish(self) -> None:
        """Mend the pairs' h by the others' v, and say which are certain."""
        self.pairs = [self._mended(at) for at in range(len(self.pairs))]

    def _mended(self, at: int) -> Sample:
        """Return a pair whose h has nothing of another sample: e S f = 0 for all partners f but its own."""
        space, pair = self._space, self.pairs[at]
        others = np.delete(self.partners(), at, axis=0) * space.values
        lengths = [np.linalg.norm(space.values * s.ray.e) for i, s in enumerate(self.pairs) if i != at]
        mixed = np.abs(others @ pair.ray.e) * lengths / np.linalg.norm(space.values * pair.ray.e)
        if not pair.ray.loose and mixed.max(initial=0.0) < MIXED:
            return replace(pair, certain=True)
        ray = sharpen(space, pair.ray.e, orthogonal(others, space.rank))
        return pair if ray is None else replace(pair, ray=ray, certain=not ray.loose)
