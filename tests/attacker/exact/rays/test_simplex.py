"""The simplex method of attacker/exact/rays against scipy's linear programs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from attacker.exact.rays.simplex import Polytope, inside


def cone(seed: int, k: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of unit length that all have a point in common on their positive side, and their sum."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, k))
    middle = rng.standard_normal(k)
    rows *= np.sign(rows @ middle)[:, None]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, rows.sum(axis=0) / np.linalg.norm(rows.sum(axis=0))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(2, 12), extra=st.integers(20, 60), perturbed=st.booleans())
def test_it_ends_at_the_optimum_that_scipy_finds(seed: int, k: int, extra: int, perturbed: bool) -> None:
    rows, plane = cone(seed, k, 2 * k + extra)
    rng = np.random.default_rng(seed)
    start = inside(rows, plane, rng)
    assert (rows @ start).min() > 0
    polytope = Polytope(rows, plane, rng)
    if perturbed:
        polytope.perturb(start)
    polytope.start(start, rng.standard_normal(k))
    for _ in range(3):  # warm, from one objective to the next; bounded, as it is a combination of rows
        objective = -rng.exponential(size=len(rows)) @ rows
        assert not polytope.climb(objective, lambda *_: False)
        program = linprog(
            -objective, A_ub=-rows, b_ub=polytope.slack, A_eq=plane[None], b_eq=[1.0], bounds=[(None, None)] * k
        )
        assert objective @ polytope.point == pytest.approx(-program.fun, rel=1e-6, abs=1e-9)
        assert (rows @ polytope.point + polytope.slack).min() > -1e-8


def test_a_climb_ends_where_it_is_asked_to() -> None:
    rows, plane = cone(1, 8, 60)
    polytope = Polytope(rows, plane, np.random.default_rng(0))
    polytope.start(inside(rows, plane, np.random.default_rng(0)), rows[0])
    seen = []
    assert polytope.climb(-rows.sum(axis=0) + 5 * rows[3], lambda point, _: bool(seen.append(point) or len(seen) == 1))
    assert len(seen) == 1
