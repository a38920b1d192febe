"""Fake gradients: the order of the true ones, the values of random ones."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from vfl.errors import RunFailedError
from vfl.observation import Tensors
from worker.defences import Defence, Plan, Played, defences
from worker.keys import Draws

Floats = NDArray[np.float32]
Reading = Literal["matched", "bounded", "unscaled", "printed"]


@defences.register("fake_gradients")
class FakeGradients(Defence):
    """Uploads the nearest of many random gradients, in the order of the true one (Jin et al. 2021, Algorithm 5).

    The candidates are drawn once a run, as the paper's "predefined gradients", and again when none is within `tau`.
    docs/defences.md says what the readings of the algorithm are and why `matched` is the default.
    """

    nu: int = Field(1000, ge=1, le=10_000, description="how many candidates are drawn")
    sigma2: float = Field(1.1, gt=0, description="the variance of their entries, in each tensor's mean square")
    tau: float | None = Field(None, gt=0, description="the largest L2 distance between the nearest and the true one")
    redraws: int = Field(10, ge=0, le=1000, description="how often new candidates are drawn to come within tau")
    reading: Reading = Field("matched", description="how Algorithm 5 is read")
    zeros: Literal["shuffled", "ordered", "kept"] = Field(
        "shuffled", description="equal entries (exact zeros) in a new order each round, in one order, or zeros stay"
    )

    def start(self, plan: Plan) -> "_Faker":
        """Begin; the candidates are drawn when the sizes of the tensors are known."""
        return _Faker(self, plan.secret.draws(f"fake gradients of worker {plan.worker}"))


class _Ranked:
    """One tensor, its entries in ascending order by value or by magnitude."""

    def __init__(self, tensor: Tensor, options: FakeGradients, shuffle: int) -> None:
        self.flat: Floats = tensor.detach().cpu().float().contiguous().numpy().reshape(-1)
        self._magnitudes = options.reading in ("bounded", "unscaled")
        self.places = places_in_order(self.flat if options.reading == "matched" else np.abs(self.flat), shuffle)
        relative = options.reading in ("matched", "bounded")
        self.scale = options.sigma2**0.5 * (_rms(self.flat) if relative else 1.0)

    def ordered(self) -> Floats:
        """Return what a candidate is compared with: the entries in order; with magnitudes, their magnitudes."""
        entries = self.flat[self.places]
        return np.abs(entries) if self._magnitudes else entries


class _Faker:
    def __init__(self, options: FakeGradients, draws: Draws) -> None:
        self._options, self._draws = options, draws
        self._first: Candidates | None = None
        """Those that every round begins with, so that a round is the same whatever was redrawn before it."""
        self._chosen: set[tuple[int, int]] = set()
        self._redraws = 0

    def apply(self, gradients: Tensors, played: Played) -> Tensors:
        odd = [1 if self._options.zeros == "ordered" else 2 * played.draws.integer(27) + 1 for _ in gradients]
        tensors = [_Ranked(one, self._options, shuffle) for one, shuffle in zip(gradients.values(), odd, strict=True)]
        curves = self._nearest(tensors, played)
        return {
            name: torch.from_numpy(self._fake(ranking, curve)).reshape(true.shape).to(true)
            for (name, true), ranking, curve in zip(gradients.items(), tensors, curves, strict=True)
        }

    def report(self) -> dict[str, Any]:
        """Return how many of the candidates were uploaded, and how often new ones were drawn."""
        return {"reading": self._options.reading, "candidates_chosen": len(self._chosen), "redraws": self._redraws}

    def _nearest(self, tensors: list[_Ranked], played: Played) -> list[Floats]:
        """Return the curves of the nearest candidate, redrawn until it is within tau."""
        sizes = [len(one.flat) for one in tensors]
        if self._first is None:
            self._first = self._drawn(sizes, self._draws)
        best, curves = self._choose(tensors, self._first, 0)
        if self._options.tau is None:
            return curves
        for _ in range(self._options.redraws):
            if best <= self._options.tau:
                break
            self._redraws += 1
            distance, curves = self._choose(tensors, self._drawn(sizes, played.draws), self._redraws)
            best = min(best, distance)
        if best > self._options.tau:
            raise RunFailedError(
                f"fake_gradients: in round {played.number} the nearest of {self._options.nu} candidates, after "
                f"{self._options.redraws} redraws, is {best:.4g} away from the true gradient, and tau is "
                f"{self._options.tau:g}: raise tau, or lower sigma2"
            )
        return curves

    def _choose(self, tensors: list[_Ranked], candidates: "Candidates", redraw: int) -> tuple[float, list[Floats]]:
        chosen = candidates.nearest([one.scale for one in tensors], [one.ordered for one in tensors])
        self._chosen.add((redraw, chosen))
        curves = candidates.curves(chosen)
        if self._options.tau is None:
            return 0.0, curves
        parts = [
            np.linalg.norm(one.scale * curve.astype(np.float64) - one.ordered())
            for one, curve in zip(tensors, curves, strict=True)
        ]
        return float(np.linalg.norm(parts)), curves

    def _drawn(self, sizes: list[int], draws: Draws) -> "Candidates":
        magnitudes = self._options.reading in ("bounded", "unscaled")
        return Candidates(sizes, self._options.nu, magnitudes, draws.integer())

    def _fake(self, ranking: _Ranked, curve: Floats) -> Floats:
        bounds = np.empty_like(ranking.flat)
        bounds[ranking.places] = np.float32(ranking.scale) * curve
        fake = bounds
        if self._options.reading != "matched":
            fake = np.minimum(bounds, np.maximum(ranking.flat, -bounds))
        if self._options.zeros == "kept":
            fake[ranking.flat == 0] = 0.0
        return fake


def _rms(entries: Floats) -> float:
    mean = float(products(entries[None], entries)[0]) / max(1, len(entries))
    if not 1e-25 < mean < 1e25:  # squares of small float32 numbers vanish
        mean = float(np.mean(np.square(entries, dtype=np.float64))) if len(entries) else 0.0
    return float(mean**0.5)


SHARED_ABOVE = 2048
"""Of a tensor with more entries all candidates hold the same sample: sorted samples of so many hardly differ."""
LARGEST = 2**28
"""Of the 29 bits that float64 has more than float32 one stays 0, so that no place rounds a value up."""
_TAG = np.uint32(LARGEST - 1)


class Candidates:
    """So many candidates for tensors of these sizes, a sorted sample for each tensor: normal numbers or magnitudes."""

    def __init__(self, sizes: Sequence[int], count: int, magnitudes: bool, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._own = [at for at, size in enumerate(sizes) if size <= SHARED_ABOVE]
        self._curves: list[Floats] = []
        for size in sizes:
            drawn = random.standard_normal((count if size <= SHARED_ABOVE else 1, size), dtype=np.float32)
            self._curves.append(np.sort(np.abs(drawn) if magnitudes else drawn, axis=1))
        self._squares = np.zeros((count, len(sizes)))
        for at in self._own:
            self._squares[:, at] = np.square(self._curves[at], dtype=np.float64).sum(axis=1)

    def nearest(self, scales: Sequence[float], ordered: Sequence[Callable[[], Floats]]) -> int:
        """Return the candidate that, times each tensor's scale, is nearest in L2 to the tensors' ordered entries."""
        # |s z - g|^2 = s^2 |z|^2 - 2 s z.g + |g|^2: the last term is the same for all, as are shared samples.
        # In units of the largest scale, as squares of small float32 numbers vanish.
        unit = max([scales[at] for at in self._own], default=0.0) or 1.0
        distances: NDArray[np.float64] = np.zeros(len(self._squares))
        for at in self._own:
            scale = scales[at] / unit
            distances += scale**2 * self._squares[:, at]
            distances -= 2 * scale * products(self._curves[at], ordered[at]() / np.float32(unit))
        return int(np.argmin(distances))

    def curves(self, candidate: int) -> list[Floats]:
        """Return a candidate: for each tensor its numbers in ascending order."""
        return [rows[candidate if len(rows) > 1 else 0] for rows in self._curves]


def places_in_order(values: Floats, shuffle: int = 1) -> NDArray[np.int64]:
    """Return the places of the values in ascending order.

    numpy sorts float64 words in milliseconds, so each carries its place in the bits that float32 does not have.
    Equal values (0 and -0 are equal) come in an order that is fixed by `shuffle`, an odd number: by place * shuffle
    modulo 2^28, upwards for zero and above, downwards below.
    """
    if len(values) > LARGEST:
        raise ValueError(f"{len(values)} entries are too many to rank")
    words = (values + np.float32(0)).astype(np.float64)  # -0 becomes 0
    bits = words.view(np.uint64)
    tags = np.arange(len(values), dtype=np.uint32)
    tags *= np.uint32(shuffle)
    tags &= _TAG
    bits |= tags
    words.sort()
    np.copyto(tags, bits, casting="unsafe")
    tags *= np.uint32(pow(shuffle, -1, LARGEST))  # whatever is above the tag's bits has no part in those below
    tags &= _TAG
    return tags.astype(np.int64)


def products(rows: Floats, entries: Floats) -> Floats:
    """Return rows @ entries, by torch: numpy's BLAS would take every core, whatever share this process has of them."""
    found: Floats = torch.from_numpy(rows).mv(torch.from_numpy(entries)).numpy()
    return found
