"""Fake gradients: the order of the true ones, the values of random ones."""

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vfl.errors import RunFailedError
from vfl.observation import Tensors
from worker.defences import Defence, Plan, Played, defences
from worker.defences.candidates import Candidates, Floats, places_in_order, products
from worker.draws import Draws

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
        """Return the fake gradients."""
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

    def _choose(self, tensors: list[_Ranked], candidates: Candidates, redraw: int) -> tuple[float, list[Floats]]:
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

    def _drawn(self, sizes: list[int], draws: Draws) -> Candidates:
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
