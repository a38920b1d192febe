"""Noise, pruning, quantisation, clipping: each against its own formula."""

import math

import pytest
import torch

from tests.worker.defences.support import numbers, started, upload
from vfl.errors import UserError


@pytest.mark.parametrize(("kind", "fourth"), [("gaussian", 3.0), ("laplace", 6.0)])
@pytest.mark.parametrize("relative", [True, False])
def test_noise_has_the_deviation_and_kurtosis_that_it_should(kind: str, fourth: float, relative: bool) -> None:
    true = 4.0 * numbers(300, 1000).sign()
    found = upload(started("noise", kind=kind, scale=0.5, relative=relative), {"top.w": true})["top.w"]
    noise = (found - true).double() / (2.0 if relative else 0.5)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(noise.square().mean()) == pytest.approx(1.0, rel=0.02)
    assert float(noise.pow(4).mean()) == pytest.approx(fourth, rel=0.1)


@pytest.mark.parametrize("keep", [0.1, 0.35, 0.999])
def test_prune_keeps_the_largest(keep: float) -> None:
    true = numbers(17, 23)
    found = upload(started("prune", keep=keep), {"bottom.w": true})["bottom.w"]
    count = math.ceil(keep * true.numel())
    expected = sorted(true.flatten().tolist(), key=abs, reverse=True)[:count]
    assert sorted(found[found != 0].tolist()) == sorted(expected)
    assert torch.equal(found[found != 0], true[found != 0])


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_quantize_rounds_to_the_nearest_of_its_values(bits: int) -> None:
    true = numbers(40, 30)
    found = upload(started("quantize", bits=bits), {"w": true})["w"]
    values = torch.linspace(-1, 1, 2**bits - 1) * true.abs().max()
    nearest = (true.unsqueeze(-1) - values).abs().min(dim=-1).values
    assert len(found.unique()) <= 2**bits - 1
    torch.testing.assert_close((found - true).abs(), nearest, atol=1e-6, rtol=1e-4)


def test_stochastic_rounding_is_right_in_the_mean() -> None:
    true = numbers(50)
    shield = started("quantize", bits=3, stochastic=True)
    found = torch.stack([upload(shield, {"w": true}, seed=seed)["w"] for seed in range(2000)])
    step = float(true.abs().max()) / 3
    assert float((found - true).abs().max()) < step * 1.001
    assert float((found.mean(dim=0) - true).abs().max()) < 5 * step / 2 / math.sqrt(2000)


def test_one_bit_is_the_sign_times_the_mean_magnitude() -> None:
    found = upload(started("quantize", bits=1), {"w": torch.tensor([3.0, -1.0, 0.0, 0.5, -0.5])})["w"]
    torch.testing.assert_close(found, torch.tensor([1.0, -1.0, 0.0, 1.0, -1.0]))


def test_one_bit_cannot_round_at_random() -> None:
    with pytest.raises(UserError, match="2 bits or more"):
        started("quantize", bits=1, stochastic=True)


def test_clip_shortens_the_whole_upload_and_keeps_its_direction() -> None:
    gradients = {"bottom.w": torch.full((4, 4), 3.0), "top.b": torch.tensor([-4.0, 0.0])}
    length = math.sqrt(16 * 9 + 16)
    found = upload(started("clip", norm=2.0), gradients)
    for name, tensor in gradients.items():
        torch.testing.assert_close(found[name], tensor * 2.0 / length)
    assert all(torch.equal(upload(started("clip", norm=13.0), gradients)[n], t) for n, t in gradients.items())
