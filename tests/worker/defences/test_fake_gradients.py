"""Fake gradients against Algorithm 5 written out line by line."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.worker.defences.support import PLAN, numbers, started, upload
from vfl.errors import RunFailedError
from worker.defences.fake_gradients import SHARED_ABOVE, Candidates, places_in_order
from worker.keys import FixedSecret

NU = 30


def candidates_of(gradients: dict[str, Tensor], magnitudes: bool) -> list[list[list[float]]]:
    """The candidates that the defence draws at worker 1, as plain lists in descending order."""
    sizes = [tensor.numel() for tensor in gradients.values()]
    drawn = Candidates(sizes, NU, magnitudes, PLAN.secret.draws("fake gradients of worker 1").integer())
    return [[curve[::-1].tolist() for curve in drawn.curves(one)] for one in range(NU)]


def algorithm_5(gradients: dict[str, Tensor], psis: list[list[list[float]]], reading: str) -> dict[str, Tensor]:
    sigma = math.sqrt(1.1)
    relative = reading in ("matched", "bounded")
    flat = {name: tensor.flatten().tolist() for name, tensor in gradients.items()}
    scale = {n: sigma * (math.sqrt(sum(v * v for v in g) / len(g)) if relative else 1.0) for n, g in flat.items()}
    by_value = reading == "matched"
    zeta = {
        n: sorted(range(len(g)), key=lambda k: g[k] if by_value else abs(g[k]), reverse=True) for n, g in flat.items()
    }

    def distance(psi: list[list[float]]) -> float:
        total = 0.0
        for part, (name, g) in zip(psi, flat.items(), strict=True):
            for value, k in zip(part, zeta[name], strict=True):
                compared = abs(g[k]) if reading in ("bounded", "unscaled") else g[k]
                total += (scale[name] * value - compared) ** 2
        return total

    nearest = min(psis, key=distance)
    fake = {}
    for part, (name, g) in zip(nearest, flat.items(), strict=True):
        out = [0.0] * len(g)
        for value, k in zip(part, zeta[name], strict=True):
            psi = scale[name] * value
            out[k] = psi if by_value else min(psi, max(g[k], -psi))
        fake[name] = torch.tensor(out).reshape(gradients[name].shape)
    return fake


@pytest.mark.parametrize("reading", ["matched", "bounded", "unscaled", "printed"])
def test_it_is_algorithm_5(reading: str) -> None:
    gradients = {
        "bottom.fc1.weight": numbers(11, 13) ** 3,
        "bottom.fc1.bias": 0.1 * numbers(11, seed=1),
        "bottom.conv.weight": 1e-3 * numbers(50, 60, seed=2),
        "top.fc.weight": 0.5 * numbers(4, 3, seed=3),
    }
    assert any(tensor.numel() > SHARED_ABOVE for tensor in gradients.values())
    expected = algorithm_5(gradients, candidates_of(gradients, reading in ("bounded", "unscaled")), reading)
    found = upload(started("fake_gradients", nu=NU, reading=reading), gradients)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-7)


def test_candidates_are_sorted_normal_numbers() -> None:
    small, large = Candidates([200, 5000], 400, False, seed=1), Candidates([200], 400, True, seed=1)
    curves = np.stack([small.curves(one)[0] for one in range(400)])
    assert (np.diff(curves, axis=1) >= 0).all()
    assert curves.std() == pytest.approx(1.0, abs=0.01)
    assert curves[:, -1].mean() == pytest.approx(2.746, abs=0.05)  # the mean of the largest of 200 normal numbers
    assert len(np.unique(curves[:, 100])) > 390
    assert small.curves(0)[1].std() == pytest.approx(1.0, abs=0.05)
    assert np.stack([large.curves(one)[0] for one in range(400)]).mean() == pytest.approx(
        math.sqrt(2 / math.pi), abs=0.01
    )


@pytest.mark.parametrize("shuffle", [1, 3, 2**31 + 11, 2**32 - 1])
def test_places_in_order_sort_and_miss_nobody(shuffle: int) -> None:
    values = numbers(5000).numpy()
    values[::3], values[1::7], values[5], values[6] = 0.0, -0.0, 1e-44, -3e38
    places = places_in_order(values, shuffle)
    assert sorted(places.tolist()) == list(range(5000))
    assert (np.diff(values[places]) >= 0).all()


def zeros_and_others() -> Tensor:
    true = numbers(60, 50)
    true[:, ::2] = 0.0
    return true


def test_exact_zeros_take_middle_ranks_in_a_new_order_each_round() -> None:
    true, shield = zeros_and_others(), started("fake_gradients", nu=5)
    first, second = (upload(shield, {"w": true}, seed=seed, number=seed + 1)["w"] for seed in range(2))
    assert torch.equal(first[true != 0], second[true != 0])
    assert not torch.equal(first[true == 0], second[true == 0])
    assert torch.equal(first[true == 0].sort().values, second[true == 0].sort().values)
    order = torch.arange(1500.0)
    assert abs(float(torch.corrcoef(torch.stack([order, first[true == 0]]))[0, 1])) < 0.1
    assert float(first[true < 0].max()) <= float(first[true == 0].min())


def test_ordered_zeros_are_the_same_every_round_and_kept_ones_stay() -> None:
    true = zeros_and_others()
    shield = started("fake_gradients", nu=5, zeros="ordered")
    first, second = (upload(shield, {"w": true}, seed=seed, number=seed + 1)["w"] for seed in range(2))
    assert torch.equal(first, second)
    assert bool((first[true == 0].diff() >= 0).all())
    kept = upload(started("fake_gradients", nu=5, zeros="kept"), {"w": true})["w"]
    assert not bool(kept[true == 0].any())
    assert torch.equal(kept[true != 0], first[true != 0])


def test_tau_redraws_until_a_candidate_is_near_enough() -> None:
    gradients = {"w": numbers(6)}
    plan = replace(PLAN, secret=FixedSecret(0, "worker 1"))  # whose first candidates are far away
    near = upload(started("fake_gradients", plan, nu=2000), gradients)["w"]
    tau = 1.3 * float((near - gradients["w"]).norm())
    shield = started("fake_gradients", plan, nu=20, tau=tau, redraws=500)
    assert float((upload(shield, gradients)["w"] - gradients["w"]).norm()) <= tau
    assert shield.report()["redraws"] > 0


def test_an_unreachable_tau_ends_with_the_smallest_distance() -> None:
    shield = started("fake_gradients", nu=10, tau=1e-6, redraws=3)
    with pytest.raises(RunFailedError, match=r"round 1 the nearest of 10 candidates, after 3 redraws, is [\d.]+ away"):
        upload(shield, {"w": numbers(100)})
