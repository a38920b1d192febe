"""Differential privacy: the noise, and epsilon against computations of another kind."""

import dataclasses
import itertools
import math
import sys

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from tests.worker.defences.support import PLAN, numbers, played, started, upload
from vfl.errors import UserError
from worker.defences import WithheldError
from worker.defences.dp import (
    ORDERS,
    gaussian_epsilon,
    gaussian_multiplier,
    participations,
    sampled_epsilon,
    sampled_multiplier,
)

DELTA = 1e-5


def hockey_stick(epsilon: float, multiplier: float, rate: float) -> float:
    """delta(epsilon) of one Poisson-sampled Gaussian upload, by integrating over the upload; the worse direction."""

    def absent(value: float) -> float:
        return float(norm.pdf(value, 0, multiplier))

    def present(value: float) -> float:
        return (1 - rate) * absent(value) + rate * float(norm.pdf(value, 1, multiplier))

    def excess(left: object, right: object) -> float:
        def part(value: float) -> float:
            return max(left(value) - math.exp(epsilon) * right(value), 0.0)  # type: ignore[operator]

        edges = [multiplier * edge for edge in (-12, -6, -4, -2, 0, 2, 3, 4, 5, 6, 8, 12)]
        return sum(quad(part, low, high)[0] for low, high in itertools.pairwise(edges))

    return max(excess(present, absent), excess(absent, present))


def renyi_by_hand(multiplier: float, uploads: int) -> float:
    """A bound on epsilon from the Gaussian mechanism's Renyi divergence, order / (2 multiplier^2) an upload."""
    return min(a * uploads / (2 * multiplier**2) + math.log(1 / DELTA) / (a - 1) for a in ORDERS)


@pytest.mark.parametrize(("multiplier", "uploads"), [(1.0, 1), (5.0, 1), (5.0, 40), (100.0, 400)])
def test_epsilon_of_known_batches_is_exact(multiplier: float, uploads: int) -> None:
    epsilon = gaussian_epsilon(multiplier, uploads, DELTA)
    assert hockey_stick(epsilon, multiplier / math.sqrt(uploads), 1.0) == pytest.approx(DELTA, rel=1e-3)
    assert 0.7 * renyi_by_hand(multiplier, uploads) < epsilon < renyi_by_hand(multiplier, uploads)


def test_epsilon_of_sampled_batches_bounds_the_exact_one_of_a_single_round() -> None:
    for multiplier, rate in ((0.9, 0.05), (2.0, 0.3)):
        epsilon = sampled_epsilon(multiplier, rate, 1, DELTA)
        assert hockey_stick(epsilon, multiplier, rate) <= DELTA
        assert hockey_stick(0.5 * epsilon, multiplier, rate) > DELTA


def test_epsilon_without_sampling_is_the_renyi_bound() -> None:
    found = sampled_epsilon(20.0, 1.0, 100, DELTA)
    assert gaussian_epsilon(20.0, 100, DELTA) < found < renyi_by_hand(20.0, 100)


@pytest.mark.parametrize("epsilon", [10.0, 5.0, 1.0, 0.1])
def test_the_noise_multiplier_keeps_epsilon_and_hardly_more(epsilon: float) -> None:
    known = gaussian_multiplier(epsilon, 80, DELTA)
    assert gaussian_epsilon(known, 80, DELTA) == pytest.approx(epsilon, rel=1e-3)
    secret = sampled_multiplier(epsilon, 0.05, 80, DELTA)
    assert 0.99 * epsilon < sampled_epsilon(secret, 0.05, 80, DELTA) <= epsilon


def test_uploads_are_clipped_and_get_noise_for_twice_the_clip() -> None:
    gradients = {"bottom.w": 100.0 * numbers(400, 500), "top.b": 100.0 * numbers(50)}
    found = upload(started("dp", noise_multiplier=0.5, clip=2.0, batches="known"), gradients)
    length = math.sqrt(sum(float(tensor.square().sum()) for tensor in gradients.values()))
    noise = torch.cat([(found[n] - gradients[n] * 2.0 / length).flatten() for n in gradients])
    assert float(noise.std()) == pytest.approx(0.5 * 2 * 2.0, rel=0.01)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.02)


def test_the_report_says_loudly_that_known_batches_break_the_assumption() -> None:
    shield = started("dp", epsilon=5.0)
    for number in range(1, 11):
        rows = torch.arange(4) + 4 * ((number - 1) % 5)
        shield.apply(
            {"w": numbers(3)}, dataclasses.replace(played(torch.nn.Identity(), numbers(4, 2), number), rows=rows)
        )
    report = shield.report()
    assert report["sampling"] == "Poisson with rate 0.2, batches secret"
    assert report["participations"] == 2
    assert report["epsilon"] == pytest.approx(5.0, rel=0.01)
    assert report["epsilon_batches_known"] == pytest.approx(gaussian_epsilon(report["noise_multiplier"], 2, DELTA))
    assert report["epsilon_all_workers"] == pytest.approx(gaussian_epsilon(report["noise_multiplier"], 6, DELTA))
    assert report["sensitivity"] == 6.0
    assert "DOES NOT HOLD" in report["warning"]


def test_known_batches_need_no_warning_and_secret_poisson_ones_a_mild_one() -> None:
    assert started("dp", epsilon=5.0, batches="known").report()["warning"] is None
    poisson = started("dp", epsilon=5.0, plan=dataclasses.replace(PLAN, schedule="poisson"))
    assert "key" in poisson.report()["warning"]


def test_participations_of_schedules() -> None:
    assert participations("epochs", 20, 4, 10) == 2
    assert participations("orthogonal", 20, 4, 11) == 3
    assert participations("epochs", 10, 4, 3) == 1
    most = participations("uniform", 800, 40, 400)
    assert 35 < most < 60
    assert participations("uniform", 8, 8, 5) == 5


def test_a_spent_budget_uploads_nothing_more() -> None:
    shield = started("dp", epsilon=5.0, batches="known")
    upload(shield, {"w": numbers(3)}, number=1)
    upload(shield, {"w": numbers(3)}, number=2)
    upload(shield, {"w": numbers(3)}, number=2)  # again: the same noise, no second look
    with pytest.raises(WithheldError, match="2 rounds a sample"):
        upload(shield, {"w": numbers(3)}, number=3)


def test_a_missing_accountant_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(UserError, match="opacus is not installed"):
        started("dp", epsilon=1.0)
    started("dp", epsilon=1.0, batches="known")


def test_epsilon_or_noise_multiplier_is_needed() -> None:
    for options in ({}, {"epsilon": 1.0, "noise_multiplier": 1.0}):
        with pytest.raises(UserError, match="either epsilon or noise_multiplier"):
            started("dp", **options)
