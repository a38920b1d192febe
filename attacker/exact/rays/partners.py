"""A sample's v from its h: the network after the layer leaves few v possible at an h, none of them another sample's."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attacker.exact.rays.space import Array, Space
from attacker.exact.rays.zeros import Ray

AGREES = 1e-5
"""The share of v where it cannot be, up to which both sides agree; or what the noise explains, if that is more."""
DISAGREES = 1e-2
"""The share from which on h is no sample's."""
EXACT = 1e-3
"""The relative error of v that the noise may leave: vaguer ones wait until more of the others are known."""
LENGTHS = np.geomspace(1e-2, 1e3, 100)
"""Where no bias gradient gives the length of h, it is looked for within each window of these."""
HAIR = np.array([[1 - 1e-4], [1.0], [1 + 1e-4]])
"""h has errors: a unit that is cut off by a hair may not be."""

CutOff = Callable[[Tensor], Tensor]
Span = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Network:
    """What is known of the network after the layer; where both are None, h alone must do."""

    cut_off: CutOff | None = None  # h (n, inputs) -> bool (n, outputs): v is zero there
    span: Span | None = None  # h (n, inputs) -> (n, outputs, r): v is in the span of these


@dataclass(frozen=True)
class Ban:
    """The part of every v = U S f that a ray's own v has not: `part` f = 0."""

    part: Array  # (outputs or fewer, rank)
    count: int  # how many of these equations say something


@dataclass(frozen=True)
class Partner:
    """The v of a ray: its coordinates f, and the share of v where it cannot be."""

    f: Array
    residual: float
    agrees: bool

    def same(self, other: "Partner", space: Space) -> bool:
        """Tell whether both are one direction of v."""
        v, others = space.values * self.f, space.values * other.f
        return bool(abs(v @ others) > (1 - 1e-6) * np.linalg.norm(v) * np.linalg.norm(others))


def bans(space: Space, ray: Ray, network: Network, known: int | None = None) -> tuple[Ban, ...]:
    """Return what v cannot be: one ban, or one for each window of the length of h that is possible.

    `known` says which of the known samples the ray is, if it is one of them.
    """
    h = space.h(ray.e[None])[0]
    if network.cut_off is None and network.span is None:
        return ()
    if space.biased:
        return (_ban(space, h[:-1] / h[-1] * HAIR, network, known),) if h[-1] > 0 else ()
    samples = h / np.linalg.norm(h) * LENGTHS[:, None]
    return tuple(_ban(space, samples[at : at + 2], network, known) for at in range(len(LENGTHS) - 1))


def _ban(space: Space, samples: Array, network: Network, known: int | None) -> Ban:
    """Return what v is at none of some samples h that are nearly one; in known samples' units, it is in its own."""
    given = torch.from_numpy(samples)
    own = space.below == known
    if network.cut_off is not None and (network.span is None or not space.biased):  # a window has many Jacobians
        off = np.append(network.cut_off(given).numpy().all(axis=0), ~own)
        return Ban(space.of_v[off], int((off & space.live).sum()))
    assert network.span is not None
    of_v = space.of_v[space.live]
    spans = np.hstack(list(network.span(given).double().numpy()))
    below = np.hstack([np.zeros((len(own), spans.shape[1])), own[:, None]])
    spans = np.vstack([np.pad(spans, ((0, 0), (0, 1))), below]) * space.rows[:, None]
    lengths = np.linalg.norm(spans, axis=0)
    u, values, _ = np.linalg.svd((spans / np.where(lengths > 0, lengths, 1.0))[space.live], full_matrices=False)
    possible = u[:, values > 1e-7 * values.max(initial=0.0)]
    return Ban(of_v - possible @ (possible.T @ of_v), len(of_v) - possible.shape[1])


def partner_of(space: Space, ray: Ray, own: tuple[Ban, ...], basis: Array) -> Partner | None:
    """Return the partner f in the span of the basis (rank, k), or None where too little is banned to tell."""
    k = basis.shape[1]
    if k == 0:  # more samples are said to be known than the gradient shows
        return None
    found = [
        _partner(space, ray, ban, basis) for ban in own if ban.count >= 1.1 * (k - 1) + 4 or len(ban.part) >= k == 1
    ]
    return min(found, key=lambda partner: partner.residual, default=None)


def _partner(space: Space, ray: Ray, ban: Ban, basis: Array) -> Partner:
    part = ban.part @ basis
    _, values, directions = np.linalg.svd(np.linalg.qr(part, mode="r"), full_matrices=False)
    f = basis @ directions[-1]
    v = float(np.linalg.norm(space.values * f))  # U is orthonormal
    length = float(ray.e @ (space.values * f))
    if abs(length) < 1e-9 * v:
        return Partner(f, 1.0, False)
    residual = float(values[-1]) / v
    noise = space.noise * float(np.sqrt(ban.count)) / v
    # f's error in the direction of another singular vector, and what that does to v
    others = np.linalg.norm(space.values[:, None] * (basis @ directions[:-1].T), axis=0)
    error = space.noise * float(np.linalg.norm(others / np.maximum(values[:-1], 1e-300))) / v
    return Partner(f / length, residual, bool(error < EXACT and residual < max(AGREES, 3 * noise)))


def agreement(space: Space, ban: Ban, f: Array) -> Partner:
    """Return a partner that is known from elsewhere, by whether the network could send it back."""
    v = float(np.linalg.norm(space.values * f))
    residual = float(np.linalg.norm(ban.part @ f)) / v
    noise = space.noise * float(np.sqrt(ban.count)) / v
    return Partner(f, residual, residual < max(AGREES, 3 * noise))


def orthogonal(vectors: Array, rank: int) -> Array:
    """Return a basis (rank, rank - n) of what is orthogonal to the vectors (n, rank)."""
    if not len(vectors):
        return np.eye(rank)
    basis: Array = np.linalg.qr(vectors.T, mode="complete")[0][:, len(vectors) :]
    return basis
