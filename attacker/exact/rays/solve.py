"""Every sample's h and v from one gradient of a fully connected layer, G = sum of v_n h_n^T, h out of a ReLU.

Each h_n is non-negative and zero at hundreds of coordinates: an extreme ray of the cone {h >= 0} within the gradient's
space, which linear programs with random objectives find. The network after the layer leaves few v possible at an h:
that tells its v, and whether it is a sample at all.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from attacker.exact.rays.batch import FIRST_SHARE, LEAST_SHARE, Batch
from attacker.exact.rays.partners import CutOff, Network, Span
from attacker.exact.rays.search import Search
from attacker.exact.rays.space import Array, Given, Space, space_of

FAILS = 40
"""Searches in a row that find nothing new, after which the rest is given up."""
ATTEMPTS = 3
"""How often a batch is begun with other draws, where most but not all is certain: a false ray spoils those after it."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Known:
    """Samples that are in a batch for certain."""

    h: Tensor  # (n, inputs)
    exact: Tensor  # (n,) bool: whose h has no error but rounding, so that it sharpens what the gradient blurs


@dataclass(frozen=True)
class Found:
    """What a gradient shows of its batch, one row per sample, in no particular order."""

    h: Tensor  # (found, inputs) float64, of true length where a bias gradient was given, else of unit length
    v: Tensor  # (found, outputs) float64: G = sum of v_n h_n^T as far as found; NaN where the partner is unknown
    certain: Tensor  # (found,) bool: many zeros determine h, v is possible at h, and sees nothing of it in the others
    known: Tensor  # (found,) long: which of the known samples it is, or -1
    rank: int  # how many samples, or mixtures of samples that share their v or h, the gradient shows


def samples_of(
    weight: Tensor,
    bias: Tensor | None,
    *,
    cut_off: CutOff | None,
    span: Span | None = None,
    batch: int | None,
    seed: int,
    seconds: float = 60.0,
    white: bool = False,
    known: Known | None = None,
    progress: Progress | None = None,
) -> Found:
    """Return the samples of a gradient (outputs, inputs) and of its bias (outputs,).

    `cut_off(h)` takes (n, inputs) and says where (n, outputs) v must be zero: W h + b < 0 for a ReLU. `span(h)` says
    more: v is in the span of (n, outputs, r), the transposed Jacobian of the rest of the network at h, whatever
    gradient comes from above; with it more of larger batches is found. `white` is for a gradient with noise of one size
    added, instead of float32's, which is relative. `known` has samples that are in the batch for certain: others, whose
    v is a mixture of theirs, can be found then. The number of searches in vain ends an attempt, so that a seed gives
    the same samples on every machine; `seconds` of this thread's computing are the last resort.
    """
    with threadpool_limits(1):
        bias_gradient = None if bias is None else bias.double().numpy()
        given = None if known is None else Given(known.h.double().numpy(), known.exact.numpy())
        space = space_of(weight.double().numpy(), bias_gradient, batch=batch, white=white, given=given)
        if space is None:
            nothing = torch.zeros(0, dtype=torch.float64)
            h, v = nothing.reshape(0, weight.shape[1]), nothing.reshape(0, weight.shape[0])
            return Found(h, v, certain=nothing.bool(), known=nothing.long(), rank=0)
        rng, best = np.random.default_rng(seed), Batch(space, Network(cut_off, span))
        _search(space, best, rng, (time.thread_time() + seconds, progress or (lambda *_: None)))
        for _ in range(1, ATTEMPTS):
            if not space.rank / 2 < best.certain < space.rank:
                break
            again = Batch(space, Network(cut_off, span))
            _search(space, again, rng, (time.thread_time() + seconds, progress or (lambda *_: None)))
            best = max(best, again, key=lambda batch: (batch.certain, len(batch.all)))
        return _result(space, best)


def _search(space: Space, batch: Batch, rng: np.random.Generator, until: tuple[float, Progress]) -> None:
    """Search until all are found, too many searches in a row fail, or the time is up."""
    end, progress = until
    fails = taken = 0
    search = Search(space, batch.partners(), rng)
    while (found := len(batch.all)) < space.rank and fails < FAILS and time.thread_time() < end:
        progress(found, space.rank)
        if search.hopeless:
            break
        if search.k == 1:
            batch.offer(search.last(), last=True)
            break
        known = [sample.ray for sample in [*batch.pairs[taken:], *batch.waiting]]
        if search.program(known, batch.offer):
            batch.settle()
        fails = 0 if len(batch.all) > found else fails + 1
        if fails % 12 in (0, 11):
            batch.share = FIRST_SHARE if fails == 0 else max(LEAST_SHARE, batch.share * 0.7)
        if len(batch.pairs) - taken > search.k // 8:
            search, taken = Search(space, batch.partners(), rng), len(batch.pairs)
    batch.settle()
    batch.finish()
    progress(len(batch.all), space.rank)


def _result(space: Space, batch: Batch) -> Found:
    """Return the samples in the layer's own units."""
    samples = batch.all
    e = np.array([sample.ray.e for sample in samples]).reshape(-1, space.rank)
    f = np.full(e.shape, np.nan)
    f[: len(batch.pairs)] = batch.partners()
    zeros = np.array([sample.ray.zeros for sample in samples]).reshape(-1, len(space.seen))
    h: Array = np.where(zeros, 0.0, np.maximum(space.h(e), 0.0))
    lengths = h[:, -1] if space.biased else np.linalg.norm(h, axis=1)
    real = lengths > 0  # the bias sees every sample alike
    h, f, lengths = h[real], f[real], lengths[real, None]
    samples = [sample for sample, own in zip(samples, real, strict=True) if own]
    return Found(
        h=torch.from_numpy((h[:, :-1] if space.biased else h) / lengths),
        v=torch.from_numpy(space.v(f) * lengths),
        certain=torch.tensor([sample.certain for sample in samples], dtype=torch.bool),
        known=torch.tensor([-1 if sample.known is None else sample.known for sample in samples], dtype=torch.long),
        rank=space.rank,
    )
