"""A gradient's two spaces, that of the samples' inputs h and that of their v, in coordinates whose noise is even."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

GAP = 20.0
"""By how much the last singular value that is used stands above the first that is not: noise blurs what is below."""
EDGE = 4.0
"""By how much it stands above the largest singular value that is noise for certain, where the batch's size says so."""
BESIDE = 5e-3
"""The share of a known sample beside a gradient's space that may be its error."""
OVER_NOISE = 30.0
"""Coordinates whose rows are below this many times the noise of an entry say nothing."""
BEYOND_DOUBT = 1e4
"""The gap from which on rounding is all the noise there is, where the gradient has exact zeros too."""
CLEAR, CLEAR_OF_WHITE = 30.0, 5.0
"""How far the next singular value must be above the one that is zero for one vector to be meant. Rounding errors are
even by and large only; white noise is, and the nearer the two are, the vaguer the vector."""
ROUNDING = 1e-9
"""The least noise assumed, as a share of the largest entry: where no singular value is left to measure it by."""


@dataclass(frozen=True)
class Given:
    """Samples that are known, and which of them have no error but rounding."""

    h: Array  # (n, inputs)
    exact: Mask  # (n,)


@dataclass(frozen=True)
class Space:
    """X = D_r [G | g_b] D_c = U S Y^T, cut at its rank: h = Y S e and v = U S f, with e_m S f_n = 1 if m = n, else 0.

    Samples that are known stand below G, one row each, as if the layer had a unit that is active for that sample alone:
    their h are in the space then, wherever their v hides.

    An entry of h or v so computed has the error `noise` times |e| or |f|, whichever coordinate it is.
    """

    values: Array  # (rank,): S
    of_h: Array  # (inputs, rank): Y S; the last row is the bias's, where its gradient was given
    of_v: Array  # (outputs, rank): U S
    columns: Array  # (inputs,): D_c
    rows: Array  # (outputs,): D_r
    seen: Mask  # (inputs,): coordinates of h that say something
    live: Mask  # (outputs,): coordinates of v that do
    known: Array  # (known, inputs): samples that are given, scaled as h is, of unit length
    below: NDArray[np.int64]  # (m,): which of them stand below the gradient, and are v's last coordinates
    noise: float
    biased: bool
    clear: float

    @property
    def rank(self) -> int:
        """How many samples, or mixtures of samples that share their v or their h, the gradient shows."""
        return len(self.values)

    def h(self, e: Array) -> Array:
        """Return h (n, inputs) in the layer's own units, the bias's coordinate last where there is one."""
        found: Array = np.where(self.seen, e @ self.of_h.T / self.columns, 0.0)
        return found

    def v(self, f: Array) -> Array:
        """Return v (n, outputs) in the layer's own units."""
        found: Array = f @ self.of_v.T / self.rows
        return found[:, : found.shape[1] - len(self.below)]

    def e(self, h: Array) -> Array:
        """Return the coordinates (n, rank) of some h in the scaled coordinates (n, inputs), of unit length."""
        found = np.linalg.lstsq(self.of_h[self.seen], h[:, self.seen].T, rcond=None)[0].T
        unit: Array = (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float64)
        return unit


def space_of(
    weight: Array,
    bias: Array | None,
    *,
    batch: int | None,
    white: bool,
    given: Given | None = None,
) -> Space | None:
    """Return the spaces of a gradient (outputs, inputs) and of known samples (n, inputs), or None where it is zero.

    Samples that are not `exact`, and nearly in the gradient's space, are left out: their errors would blur it. The
    gradient's noise is float32's rounding, or white (noise that was added, a coarse grid): that under which the batch
    stands out more, unless `white` says so. Where nothing is above white noise it is None as well.
    """
    whole = weight if bias is None else np.hstack([weight, bias[:, None]])
    if not np.abs(whole).max(initial=0.0) > 0:
        return None
    white = white or _is_white(whole, batch, bias is not None)
    scaled, rows, columns = _without_noise(whole, batch, bias is not None) if white else _equilibrate(whole)
    if white and min(_units(scaled)) < 2:
        return None
    seen = np.abs(scaled).max(axis=0) > 0
    known, below = np.zeros((0, whole.shape[1])), np.zeros(0, dtype=np.int64)
    if given is not None and len(given.h):
        known = (given.h if bias is None else np.hstack([given.h, np.ones((len(given.h), 1))])) * columns * seen
        lengths = np.linalg.norm(known, axis=1)
        known /= lengths[:, None]
        below = np.flatnonzero(given.exact | ~_within(known, scaled, batch, white))
        scaled, rows = np.vstack([scaled, known[below]]), np.append(rows, 1 / lengths[below])
    live = np.abs(scaled).max(axis=1) > 0
    u, values, y = np.linalg.svd(scaled, full_matrices=False)
    units = (int(live.sum()), int(seen.sum()))
    rank = _above_noise(values, units, batch)[0] if white else _rank(values, min(units), batch)
    spare = max(1, units[0] - rank) * max(1, units[1] - rank)
    noise = max(float(np.sqrt((values[rank:] ** 2).sum() / spare)), ROUNDING * float(np.abs(scaled).max()))
    of_h, of_v = y[:rank].T * values[:rank], u[:, :rank] * values[:rank]
    return Space(
        values=values[:rank],
        of_h=of_h,
        of_v=of_v,
        columns=columns,
        rows=rows,
        seen=seen,
        live=np.linalg.norm(of_v, axis=1) > OVER_NOISE * noise,
        known=known,
        below=below,
        noise=noise,
        biased=bias is not None,
        clear=CLEAR_OF_WHITE if white else CLEAR,
    )


def _is_white(whole: Array, batch: int | None, biased: bool) -> bool:
    """Tell whether the batch stands out more of white noise than of rounding."""
    rounded = _gap(_equilibrate(whole)[0], batch, white=False)
    if rounded > BEYOND_DOUBT and np.count_nonzero(whole) < 0.99 * whole.size:
        return False
    return _gap(_without_noise(whole, batch, biased)[0], batch, white=True) > rounded


def _gap(scaled: Array, batch: int | None, *, white: bool) -> float:
    """Return by how much the batch's singular values stand above the noise's; 0 where there are none."""
    units = _units(scaled)
    if min(units) < 2:
        return 0.0
    values: Array = np.linalg.svd(scaled, compute_uv=False).astype(np.float64)
    rank = _above_noise(values, units, batch)[0] if white else _rank(values, min(units), batch)
    beyond = float(values[rank]) if rank < len(values) else 0.0
    return float(values[rank - 1]) / max(beyond, 1e-12 * float(values[0]))


def _units(scaled: Array) -> tuple[int, int]:
    """Return how many rows and columns hold something."""
    return int(np.any(scaled, axis=1).sum()), int(np.any(scaled, axis=0).sum())


def _within(known: Array, scaled: Array, batch: int | None, white: bool) -> Mask:
    """Tell of which known samples (n, inputs) so little is beside the gradient's space that it may be their error."""
    _, values, y = np.linalg.svd(scaled, full_matrices=False)
    units = (int((np.abs(scaled).max(axis=1) > 0).sum()), int((np.abs(scaled).max(axis=0) > 0).sum()))
    rank = _above_noise(values, units, batch)[0] if white else _rank(values, min(units), batch)
    inside: Mask = np.linalg.norm(known - known @ y[:rank].T @ y[:rank], axis=1) < BESIDE
    return inside


def _rank(values: Array, live: int, batch: int | None) -> int:
    """Return how many singular values stand above the noise.

    Where the batch is known, all beyond its size are noise. Otherwise it is where the last clear gap is: not that at
    the number of live units.
    """
    most = max(1, min(live - 2, batch or live))
    if batch is not None and batch < min(live - 2, len(values)):
        return max(1, int((values[:batch] > EDGE * values[batch]).sum()))
    gaps = values[:most] / np.maximum(values[1 : most + 1], 1e-12 * values[0]) if len(values) > most else np.ones(1)
    clear = np.flatnonzero(gaps > GAP)
    return int(clear[-1] if len(clear) else gaps.argmax()) + 1


def _equilibrate(whole: Array) -> tuple[Array, Array, Array]:
    """Return D_r G D_c with rows and columns of equal norm: rounding errors are relative, so they become even."""
    scaled = whole.copy()
    scaled[:, np.abs(whole).max(axis=0) <= 1e-7 * np.abs(whole).max()] = 0.0
    rows, columns = np.ones(len(whole)), np.ones(whole.shape[1])
    for _ in range(30):
        norms = np.linalg.norm(scaled, axis=1)
        norms[norms == 0] = 1.0
        scaled /= norms[:, None]
        rows /= norms
        norms = np.linalg.norm(scaled, axis=0)
        norms[norms == 0] = 1.0
        scaled /= norms
        columns /= norms
    return scaled, rows, columns


def _without_noise(whole: Array, batch: int | None, biased: bool) -> tuple[Array, Array, Array]:
    """Return G without rows and columns that are white noise alone, and with as much noise in the bias's column."""
    weight = whole[:, :-1] if biased else whole
    u, values, _ = np.linalg.svd(weight, full_matrices=False)
    rank, noise = _above_noise(values, weight.shape, batch)
    rows = np.linalg.norm(weight, axis=1) > 2 * noise * np.sqrt(weight.shape[1])
    seen = np.linalg.norm(whole, axis=0) > 2 * noise * np.sqrt(len(whole))
    columns = np.ones(whole.shape[1])
    if biased:
        seen[-1] = True
        off = np.linalg.norm(whole[:, -1] - u[:, :rank] @ (u[:, :rank].T @ whole[:, -1]))
        columns[-1] = noise / max(float(off) / np.sqrt(max(1, len(whole) - rank)), 1e-3 * noise)
    return whole * columns * rows[:, None] * seen, np.ones(len(whole)), columns


def _above_noise(values: Array, shape: tuple[int, ...], batch: int | None) -> tuple[int, float]:
    """Return how many singular values are above all that white noise has, and that noise's size."""
    most = min(batch or min(shape) // 2, min(shape) - 1)
    rank = most
    for _ in range(20):  # too high a rank takes noise for signal, and what is left for less noise than there is
        noise = float(np.sqrt((values[rank:] ** 2).sum() / (shape[0] - rank) / (shape[1] - rank)))
        edge = 1.1 * noise * (np.sqrt(shape[0]) + np.sqrt(shape[1]))  # of Marchenko and Pastur's law
        before, rank = rank, max(1, min(most, int((values > edge).sum())))
        if rank == before:
            break
    return rank, noise
