"""A simplex method for cones: from vertex to vertex of {c : A c >= -slack, p.c = 1}, warm from objective to objective.

Thousands of objectives are tried on one polytope with few dimensions and many rows, and each vertex on the way is
looked at: a general solver's calls cost more than its pivots there.
"""

from collections.abc import Callable

import numpy as np

from attacker.exact.rays.space import Array

REFRESH = 50
"""Pivots after which the inverse is computed anew: updates gather rounding errors."""
SLACK = 1e-5
"""Rows are moved by about this share of a mean height: hundreds meet in one vertex, and moved they meet one by one."""
FLAT = 1e-7
"""A row that a unit step lowers by less is never reached."""


class Polytope:
    """The polytope, and the vertex reached: its `point` c, and the `heights` A c + slack of the rows."""

    def __init__(self, rows: Array, plane: Array, rng: np.random.Generator) -> None:
        """Rows are of unit length."""
        self.rows, self.plane = np.ascontiguousarray(rows), plane
        self.slack, self.scale, self.pivots = np.zeros(len(rows)), 1.0, 0
        self._rng = rng
        self.point, self.heights = plane, np.zeros(len(rows))
        self._basis, self._inverse = np.zeros(0, dtype=np.int64), np.zeros((0, 0))

    def perturb(self, inside: Array) -> None:
        """Move every row a little, at random, by the heights of a point inside."""
        self.scale = float(np.abs(self.rows @ inside).mean() / abs(self.plane @ inside))
        self.slack = SLACK * self.scale * self._rng.uniform(0.5, 1.5, len(self.rows))

    def start(self, inside: Array, objective: Array) -> bool:
        """Go from a feasible point to a vertex, along the objective as far as the rows met so far allow.

        Tell if there is one: rows that all but coincide leave lines on which none is met.
        """
        count, k = self.rows.shape
        point: Array = inside / (self.plane @ inside)
        heights = self.rows @ point + self.slack
        met, basis = np.zeros((k, k)), np.zeros(k, dtype=np.int64)
        met[0] = self.plane / np.linalg.norm(self.plane)
        passed = np.zeros(count, dtype=bool)
        dimension = 1
        while dimension < k:
            step = _apart(objective, met[:dimension])
            length = float(np.linalg.norm(step))
            if length < 1e-6 * np.linalg.norm(objective):
                objective = self._rng.standard_normal((k,))
                continue
            slopes = self.rows @ (step / length)
            slopes[passed] = 0.0
            if not (slopes < -FLAT).any():
                step, slopes = -step, -slopes
            if not (slopes < -FLAT).any():
                return False
            row, distance = _first_met(heights, slopes)
            point = point + step * (distance / length)
            heights = heights + distance * slopes
            normal = _apart(self.rows[row], met[:dimension])
            met[dimension] = normal / np.linalg.norm(normal)
            basis[dimension] = row
            passed[row] = True
            dimension += 1
            self.pivots += 1
        self._basis = basis
        self._refresh()
        return True

    def climb(self, objective: Array, stop: Callable[[Array, Array], bool], most: int = 3000) -> bool:
        """Pivot along steepest edges until none ascends, or `stop(point, heights)` says so: tell if it did."""
        floor = 1e-9 * float(np.linalg.norm(objective))
        for pivot in range(most):
            if pivot % REFRESH == REFRESH - 1:
                self._refresh()
            inverse = self._inverse
            gains = objective @ inverse
            gains[0] = -1.0  # the plane is never left
            lengths = np.sqrt(np.einsum("ij,ij->j", inverse, inverse))
            edge = int((gains / lengths).argmax())
            if gains[edge] <= floor * lengths[edge]:
                return False
            step = inverse[:, edge] / lengths[edge]
            slopes = self.rows @ step
            if not (slopes < -FLAT).any():
                return False
            row, distance = _first_met(self.heights, slopes, 1e-10 * self.scale)
            self.point = self.point + distance * step
            self.heights = self.heights + distance * slopes
            self.heights[row] = 0.0
            along = self.rows[row] @ inverse
            column = inverse[:, edge] / along[edge]
            inverse -= np.outer(column, along)
            inverse[:, edge] = column
            self._basis[edge] = row
            self.pivots += 1
            if stop(self.point, self.heights):
                return True
        return False

    def _refresh(self) -> None:
        tight = self._basis[1:]
        self._inverse = np.linalg.inv(np.vstack([self.plane, self.rows[tight]]))
        self.point = self._inverse @ np.append(1.0, -self.slack[tight])
        self.heights = self.rows @ self.point + self.slack


def inside(rows: Array, plane: Array, rng: np.random.Generator) -> Array:
    """Return a point of the cone that is well inside: t is lowered until rows c + t >= 0 holds with t < 0."""
    count, k = rows.shape
    point = plane / (plane @ plane)
    heights = rows @ point
    mean = float(np.abs(heights).mean())
    wider = Polytope(np.hstack([rows, np.ones((count, 1))]), np.append(plane, 0.0), rng)
    wider.scale = mean
    down = np.append(np.zeros(k), -1.0)
    if not wider.start(np.append(point, max(0.0, -float(heights.min())) + 0.1 * mean), down):
        return point
    wider.climb(down, lambda c, _: bool(c[-1] < -1e-2 * mean), 1000)
    return wider.point[:k]


def _apart(vector: Array, basis: Array) -> Array:
    """Return what of the vector is orthogonal to the basis (n, k); twice, as rounding asks for."""
    vector = vector - (basis @ vector) @ basis
    rest: Array = vector - (basis @ vector) @ basis
    return rest


def _first_met(heights: Array, slopes: Array, tolerance: float = 0.0) -> tuple[int, float]:
    """Return which row the step meets first, and where; of those within the tolerance the steepest (Harris 1973)."""
    falling = np.flatnonzero(slopes < -FLAT)
    above, speed = np.maximum(heights[falling], 0.0), -slopes[falling]
    distances = above / speed
    first = np.flatnonzero(distances <= ((above + tolerance) / speed).min())
    at = first[speed[first].argmax()]
    return int(falling[at]), float(distances[at])
