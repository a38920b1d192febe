"""A sample's vector from its zeros: hundreds of coordinates where its ReLU cut h off fix it, better than a vertex."""

from dataclasses import dataclass

import numpy as np

from attacker.exact.rays.space import Array, Mask, Space

STARTS = (1e-4, 2e-3, 2e-2)
"""What counts as zero at first, as a share of the mean height; it shrinks to the noise."""
FEW = 3
"""A vector about which so few coordinates decide is loose: they are where a face of the cone ends, no ReLU's zeros."""


@dataclass(frozen=True)
class Ray:
    """A vector e of the cone {e : h(e) >= 0} that its zeros determine.

    It is `loose` where few of them do. If one sample is zero wherever another is (a slice without content), the other
    less some of the one is in the cone too, and an extreme ray: only v tells how much of it is too much.
    """

    e: Array  # (rank,), of unit length
    zeros: Mask  # (inputs,)
    heights: Array  # (inputs,): h in the scaled coordinates, of unit length
    loose: bool

    def same(self, other: "Ray") -> bool:
        """Tell whether it is another's direction, as far as float32 shows it."""
        return bool(self.heights @ other.heights > 1 - 1e-8)


def sharpen(space: Space, e: Array, basis: Array | None = None) -> Ray | None:
    """Return the ray near e, within a basis (rank, k) if given, or None where zeros determine none that is >= 0."""
    rows = space.of_h[space.seen]
    if basis is not None:
        rows, e = rows @ basis, basis.T @ e
    for start in STARTS:
        found = _sharpen(rows, e / np.linalg.norm(e), start, noise=space.noise, clear=space.clear)
        if found is not None:
            e, zeros, loose = found
            heights = rows @ e
            whole, mask = np.zeros(len(space.seen)), np.zeros(len(space.seen), dtype=bool)
            whole[space.seen], mask[space.seen] = heights / np.linalg.norm(heights), zeros
            return Ray(e if basis is None else basis @ e, mask, whole, loose)
    return None


def given(space: Space) -> dict[int, Ray]:
    """Return the rays of the known samples that stand below the gradient."""
    own = space.known[space.below]
    zeros = space.seen & (own <= 8 * space.noise)
    each = zip(space.below.tolist(), space.e(own), zeros, own, strict=True)
    return {at: Ray(e, cut, heights, loose=False) for at, e, cut, heights in each}


def blunt(space: Space, e: Array) -> Ray:
    """Return e as it is: a ray that is loose."""
    e = e / np.linalg.norm(e)
    heights = np.where(space.seen, space.of_h @ e, 0.0)
    return Ray(e, space.seen & (heights < 5 * space.noise), heights / np.linalg.norm(heights), True)


def _sharpen(rows: Array, e: Array, start: float, *, noise: float, clear: float) -> tuple[Array, Mask, bool] | None:
    """Return the unit vector, its zeros and whether it is loose; the noise of a height is that of a unit vector's."""
    heights = rows @ e
    least = 5 * noise
    if len(e) == 1:  # nothing is left to choose
        sign = np.sign(heights.sum())
        return (e * sign, np.abs(heights) < least, False) if (heights * sign).min() > -8 * noise else None
    near = max(least, start * float(np.abs(heights).mean()))
    zeros: Mask = np.abs(heights) < near
    for _ in range(12):
        if zeros.sum() < rows.shape[1] + 2:
            return None
        e, following, low, next_low = null_vector(rows[zeros])
        if next_low < 4 * low:
            return None
        heights = rows @ e
        near = max(least, near / 4)
        before, zeros = zeros, np.abs(heights) < near
        if near == least and (zeros == before).all():
            break
    sign = np.sign(heights.sum())
    if low > 3 * noise * float(np.sqrt(zeros.sum())) or next_low < clear * low or (heights * sign).min() < -8 * noise:
        return None
    deciding = np.sort(np.abs(rows[zeros] @ following))[:-FEW]
    return e * sign, zeros, bool(np.linalg.norm(deciding) < clear * low)


def null_vector(rows: Array) -> tuple[Array, Array, float, float]:
    """Return the unit vector that rows (n, k), n >= k, make smallest, the next one, and both singular values."""
    _, values, directions = np.linalg.svd(np.linalg.qr(rows, mode="r"))
    return directions[-1], directions[-2], float(values[-1]), float(values[-2])
