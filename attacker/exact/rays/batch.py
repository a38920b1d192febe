"""The samples of a batch as they are found: pairs of h and v that agree, and rays that wait for their v."""

from dataclasses import dataclass, replace

import numpy as np

from attacker.exact.rays.partners import DISAGREES, Ban, Network, Partner, agreement, bans, orthogonal, partner_of
from attacker.exact.rays.space import Array, Space
from attacker.exact.rays.zeros import Ray, blunt, given, sharpen
from vfl.maths.cone import enough_zeros

MIXED = 1e-4
"""How much of another sample, in units of the sample itself, v may see in an h that is called certain."""
CLEAN = 1e-2
"""How much of it an h may have that others are judged by: rounding leaves less, a ray that is no sample's has more."""
FIRST_SHARE, LEAST_SHARE = 0.6, 0.15
"""A ray needs this share of the most zeros that another has; less and less where searches fail."""
RECOGNISED = 1 - 1e-5
"""The cosine from which on a ray is that of a known sample."""
SUSPECTS = 4
"""Of rays whose partners contradict each other, how many are tried as the false one, those with the fewest zeros."""


@dataclass(frozen=True)
class Sample:
    """A ray, what its v cannot be, and its partner once it is known."""

    ray: Ray
    own: tuple[Ban, ...]
    partner: Partner | None = None
    certain: bool = False
    known: int | None = None
    """Which of the known samples it is."""


class Batch:
    """Samples found: with a partner that agrees, in the order in which they were found, or waiting for one."""

    def __init__(self, space: Space, network: Network) -> None:
        self._space, self._network = space, network
        self.pairs: list[Sample] = []
        self.waiting: list[Sample] = []
        self.share = FIRST_SHARE
        for at, ray in given(space).items():
            self.waiting.append(Sample(ray, bans(space, ray, network, at), known=at))
        self.settle()

    @property
    def all(self) -> list[Sample]:
        """Pairs first."""
        return [*self.pairs, *self.waiting]

    @property
    def certain(self) -> int:
        """Return how many are certain."""
        return sum(sample.certain for sample in self.all)

    def partners(self) -> Array:
        """Return f (pairs, rank)."""
        return np.array([s.partner.f for s in self.pairs if s.partner]).reshape(-1, self._space.rank)

    def offer(self, e: Array, last: bool = False) -> bool:
        """Keep the ray near e if it is new, its zeros are many or nothing else is left, and no v contradicts."""
        ray = sharpen(self._space, e)
        if self.pairs and (ray is None or self._mixture(ray).max() > CLEAN):
            ray = sharpen(self._space, e, orthogonal(self.partners() * self._space.values, self._space.rank))
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
        most = max(zeros, int(ray.zeros.sum()))  # one that was found before others with many zeros may be false
        self.waiting = [o for o in self.waiting if o.known is not None or o.ray.zeros.sum() >= LEAST_SHARE * most]
        return True

    def _pair(self, pair: Sample) -> bool:
        """Keep a pair; of two with one v, that with more zeros: the other is its sample and some of others."""
        for at, other in enumerate(self.pairs):
            if pair.partner and other.partner and pair.partner.same(other.partner, self._space):
                if other.known is None and (pair.known is not None or pair.ray.zeros.sum() > other.ray.zeros.sum()):
                    self.pairs[at] = pair
                return False
        self.pairs.append(pair)
        return True

    def _mixture(self, ray: Ray) -> Array:
        """Return how much of each pair's sample its v sees in a ray, in units of the ray."""
        values = self._space.values
        lengths = np.array([np.linalg.norm(values * pair.ray.e) for pair in self.pairs])
        mixed: Array = np.abs(self.partners() @ (values * ray.e)) * lengths / np.linalg.norm(values * ray.e)
        return mixed

    def _clean(self) -> list[Sample]:
        """Return the pairs in whose h no other pair's v sees anything: the v is right in any case, the h may not be."""
        mixed = np.array([self._mixture(pair.ray) for pair in self.pairs]).reshape(len(self.pairs), len(self.pairs))
        np.fill_diagonal(mixed, 0.0)
        return [pair for pair, own in zip(self.pairs, mixed, strict=True) if own.max(initial=0.0) < CLEAN]

    def _partner(self, sample: Sample, others: list[Sample]) -> Partner | None:
        """Return the partner that the ban alone determines, or the ban and those that are orthogonal to it."""
        rank = self._space.rank
        known = [s.ray.e for s in [*self._clean(), *others] if not s.ray.loose]
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
            if not any(bad) or all(sample.known is not None for sample in self.waiting):
                self._sort(partners)
                return
            self.waiting.pop(self._culprit())

    def _culprit(self) -> int:
        """Return which of those that wait spoils the partners of others: without it, the fewest contradict.

        Of equals it is that with the fewest zeros. Where many wait, only those with few zeros are suspects.
        """
        zeros = np.array([sample.ray.zeros.sum() for sample in self.waiting])
        left: dict[int, int] = {}
        suspects = [at for at in np.argsort(zeros, kind="stable").tolist() if self.waiting[at].known is None]
        for at in suspects[:SUSPECTS]:
            others = [sample for i, sample in enumerate(self.waiting) if i != at]
            partners = (self._partner(s, [o for o in others if o is not s]) for s in others)
            left[at] = sum(partner is not None and partner.residual > DISAGREES for partner in partners)
        return min(left, key=lambda at: (left[at], zeros[at]))

    def _sort(self, partners: list[Partner | None]) -> bool:
        """Make pairs of those whose partners agree, forget those whose partners contradict; tell if any did."""
        before = list(zip(self.waiting, partners, strict=True))
        for sample, p in before:
            if p is not None and p.agrees:
                self._pair(replace(sample, partner=p))
        self.waiting = [
            sample
            for sample, p in before
            if p is None or not (p.agrees or (p.residual > DISAGREES and sample.known is None))
        ]
        return len(self.waiting) < len(before)

    def finish(self) -> None:
        """Mend the pairs' h by the others' v, then all v by all h, and say which are certain."""
        self.pairs = [self._mended(at) for at in range(len(self.pairs))]
        self._complete()
        self.pairs, self.waiting = (
            [_recognised(self._space, sample) for sample in own] for own in (self.pairs, self.waiting)
        )

    def _complete(self) -> None:
        """Where every ray is found, take each v from all of them: e_m S f_n is 1 if m = n, and 0 otherwise.

        Before, a v could have a part of another's that the network allows too. If one ray is false, some v do not
        agree, and all are left as they are.
        """
        samples, space = self.all, self._space
        if len(samples) != space.rank or any(sample.ray.loose or len(sample.own) != 1 for sample in samples):
            return
        duals = np.linalg.pinv(np.array([sample.ray.e for sample in samples]) * space.values).T
        found = [agreement(space, sample.own[0], f) for sample, f in zip(samples, duals, strict=True)]
        if all(partner.agrees for partner in found):
            self.pairs = [replace(sample, partner=own) for sample, own in zip(samples, found, strict=True)]
            self.waiting = []

    def _mended(self, at: int) -> Sample:
        """Return a pair whose h has nothing of another sample: e S f = 0 for all partners f but its own."""
        space, pair = self._space, self.pairs[at]
        if pair.known is not None:
            return replace(pair, certain=True)
        others = np.delete(self.partners(), at, axis=0) * space.values
        mixed = np.delete(self._mixture(pair.ray), at)
        if not pair.ray.loose and mixed.max(initial=0.0) < MIXED:
            return replace(pair, certain=True)
        ray = sharpen(space, pair.ray.e, orthogonal(others, space.rank))
        return pair if ray is None else replace(pair, ray=ray, certain=not ray.loose)


def _recognised(space: Space, sample: Sample) -> Sample:
    """Say which known sample it is, if it is one of those that were left out."""
    alike = space.known @ sample.ray.heights
    if sample.known is not None or not len(alike) or alike.max() < RECOGNISED:
        return sample
    return replace(sample, known=int(alike.argmax()))
