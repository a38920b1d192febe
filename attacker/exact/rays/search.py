"""Random linear programs over the cone of the samples that are still missing: most end at one of them."""

from collections.abc import Callable, Sequence

import numpy as np

from attacker.exact.rays.partners import orthogonal
from attacker.exact.rays.simplex import Polytope, inside
from attacker.exact.rays.space import OVER_NOISE, Array, Space
from attacker.exact.rays.zeros import Ray

HOPS = 6
"""Minima that one search goes to, each from the last with new weights: it takes some where h has few zeros."""
STEPS = 40
"""Linear programs on the way to a minimum; nearly all end sooner, where no edge descends."""
NEARLY_ZERO = 0.1
"""The share of the mean height below which a height matters little less than zero."""
SAME = 1 - 1e-5
"""The cosine from which on a vertex is a ray that is known."""


class Search:
    """{e : h(e) >= 0, e orthogonal to S f of every sample taken out}, in coordinates c of k = rank - n dimensions."""

    def __init__(self, space: Space, taken: Array, rng: np.random.Generator) -> None:
        """`taken` holds the f (n, rank) of samples that are found for certain; others of the batch stay in."""
        self._space, self._rng = space, rng
        basis = orthogonal(taken * space.values, space.rank)
        self.k = basis.shape[1]
        local = space.of_h @ basis
        lengths = np.linalg.norm(local, axis=1)
        live = space.seen & (lengths > max(OVER_NOISE * space.noise, 1e-5 * float(lengths.max())))
        even, triangle = np.linalg.qr(local)
        self._to_e, self._from_e = basis @ np.linalg.inv(triangle), triangle @ basis.T
        rows = even[live]
        self.hopeless = len(rows) <= self.k
        if self.hopeless:  # what is left of the gradient is noise
            return
        self._lengths = np.linalg.norm(rows, axis=1)
        rows = rows / self._lengths[:, None]
        plane = rows.sum(axis=0)
        plane /= np.linalg.norm(plane)
        self._inside = inside(rows, plane, rng)
        self._polytope = Polytope(rows, plane, rng)
        self._polytope.perturb(self._inside)

    def program(self, known: Sequence[Ray], offer: Callable[[Array], bool]) -> bool:
        """Go up random objectives until a vertex that is no known ray is accepted by `offer(e)`, or none ascends."""
        polytope, rows = self._polytope, self._polytope.rows
        marks = np.array([ray.e for ray in known]).reshape(-1, self._space.rank) @ self._from_e.T
        marks /= np.linalg.norm(marks, axis=1, keepdims=True)
        enough = self.k + max(4.0, 0.3 * self.k)
        tried = 0
        hit = False

        def look(point: Array, heights: Array) -> bool:
            nonlocal tried, hit
            zeros = self._zeros(point, heights)
            if zeros < enough:
                return False
            old = len(marks) > 0 and bool(np.abs(marks @ point).max() > SAME * np.linalg.norm(point))
            if old or zeros < 1.1 * tried:
                return old
            tried = zeros
            hit = offer(self._to_e @ point)
            return hit

        away = rows[self._rng.integers(len(rows))]
        if len(marks):
            across = np.linalg.qr(marks.T)[0]
            away = away - across @ (across.T @ away)
        if not polytope.start(self._inside, away):
            return False
        polytope.climb(away, lambda c, h: look(c, h) and hit)  # past rays that are known
        for _ in range(HOPS):
            if hit or self._climb(look):
                return hit
            if self._zeros(polytope.point, polytope.heights) >= enough and offer(self._to_e @ polytope.point):
                return True
        return False

    def _climb(self, look: Callable[[Array, Array], bool]) -> bool:
        """Go to a minimum of the sum of w log(h + a little), w random: many zeros. Tell if `look` ended it on the way.

        Each step is the linear program of the sum's gradient (Frank and Wolfe).
        """
        polytope = self._polytope
        weights = self._rng.exponential(size=len(polytope.rows))
        for _ in range(STEPS):
            before = polytope.pivots
            heights = np.maximum(polytope.heights, 0.0)
            if polytope.climb(-(weights / (heights + NEARLY_ZERO * heights.mean())) @ polytope.rows, look):
                return True
            if polytope.pivots == before:
                break
        return False

    def _zeros(self, point: Array, heights: Array) -> int:
        scale = self._polytope.scale
        noise = 6 * self._space.noise * float(np.linalg.norm(self._to_e @ point))
        return int(np.count_nonzero(heights < np.minimum(1e-3 * scale + noise / self._lengths, 0.05 * scale)))

    def last(self) -> Array:
        """Return the one direction that is left where k = 1."""
        e = self._to_e[:, 0]
        found: Array = e * np.sign((self._space.of_h @ e).sum())
        return found
