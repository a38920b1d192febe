"""The adaptive attacker on gradients that were altered in ways it was told of, or not; alterations are made here."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from attacker.adaptive.own import rank_one
from attacker.adaptive.sizes import unclipped
from attacker.adaptive.step_three import invert_inexact
from attacker.interface import Recovery, attacks, silent
from attacker.inversion import InversionOptions
from vfl.errors import UserError
from vfl.local.one_process import observations
from vfl.models import build_bottom
from vfl.models.layers import representation
from vfl.observation import ModelTensors, Observation, Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection

Alter = Callable[[dict[str, Tensor]], dict[str, Tensor]]
SAMPLES, BATCH = 16, 4


def setting_of(rounds: int) -> Setting:
    boxes = tuple(partition((1, 8, 8), 2))
    model = PluginSection(name="mlp", hidden=[48, 24])
    return Setting(model, boxes, 3, SAMPLES, BATCH, "epochs", rounds, True, 5, "cpu")


def pictures() -> tuple[Tensor, Tensor]:
    coarse = torch.rand(SAMPLES, 1, 5, 5, generator=torch.Generator().manual_seed(4))
    return interpolate(coarse, size=(8, 8), mode="bilinear"), torch.arange(SAMPLES) % 3


def altered(seen: list[Observation], alter: Alter) -> list[Observation]:
    return [
        replace(o, gradients=ModelTensors(tuple(alter(dict(b)) for b in o.gradients.bottoms), o.gradients.top))
        for o in seen
    ]


def attacked(rounds: int, alter: Alter, **options: Any) -> Recovery:
    setting = setting_of(rounds)
    seen = list(observations(setting, *pictures(), TrainingConfig()))
    attack = attacks.build(PluginSection(name="averaging", **options)).start(setting)
    for observation in altered(seen, alter):
        attack.observe(observation)
    return attack.recover(silent)


def error_of(recovery: Recovery) -> float:
    """The median relative error of the slices, which the first layer sees as they are."""
    assert recovery.slices is not None
    errors = []
    for box, found in zip(setting_of(1).boxes, recovery.slices, strict=True):
        truth = box.cut(pictures()[0])
        errors.append((found - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1))
    return float(torch.cat(errors).nanmedian())


def each(alter: Callable[[Tensor], Tensor]) -> Alter:
    return lambda tensors: {name: alter(tensor) for name, tensor in tensors.items()}


def true(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors


def noisy(scale: float) -> Alter:
    random = torch.Generator().manual_seed(0)
    return each(lambda t: t + scale * t.square().mean().sqrt() * torch.randn(t.shape, generator=random))


def pruned(share: float) -> Alter:
    def largest(tensor: Tensor) -> Tensor:
        smallest = tensor.abs().flatten().topk(max(1, int(share * tensor.numel()))).values[-1]
        return torch.where(tensor.abs() >= smallest, tensor, 0.0)

    return each(largest)


def quantised(bits: int) -> Alter:
    def rounded(tensor: Tensor) -> Tensor:
        step = tensor.abs().max() / (2 ** (bits - 1) - 1)
        return (tensor / step).round() * step

    return each(rounded)


def clipped(limit: float) -> Alter:
    def shortened(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        norm = torch.stack([tensor.norm() for tensor in tensors.values()]).norm()
        return {name: tensor * min(1.0, float(limit / norm)) for name, tensor in tensors.items()}

    return shortened


def faked() -> Alter:
    random = torch.Generator().manual_seed(0)

    def fake(tensor: Tensor) -> Tensor:
        drawn = torch.randn(tensor.numel(), generator=random).sort().values * (1.1 * tensor.square().mean()).sqrt()
        shuffled = torch.randperm(tensor.numel(), generator=random)  # equal entries in another order each time
        order = shuffled[tensor.flatten()[shuffled].argsort(stable=True)]
        return torch.empty_like(drawn).scatter_(0, order, drawn).reshape(tensor.shape)

    return each(fake)


def test_true_gradients_give_everything_and_no_suspicion():
    recovery = attacked(40, true)
    assert error_of(recovery) < 1e-4
    assert torch.equal(recovery.labels, pictures()[1])
    assert recovery.altered == (0.0, 0.0)
    assert not any("altered" in note for note in recovery.notes)
    assert recovery.used == ("indices", "parameters", "gradients")


def test_noise_averages_out_over_rounds():
    few, many = (error_of(attacked(rounds, noisy(1.0))) for rounds in (40, 640))
    assert many < few / 2
    assert many < 0.15


@pytest.mark.parametrize(
    ("name", "alter", "share"),
    [("prune", pruned(0.2), 0.5), ("quantize", quantised(4), 0.8), ("clip", clipped(0.01), 0.01),
     ("fake_gradients", faked(), 0.6)],
)  # fmt: skip
def test_told_of_a_defence_it_does_better(name, alter, share):
    untold = attacked(80, alter)
    told = attacked(80, alter, told={"name": name})
    assert error_of(told) < share * error_of(untold)
    assert "the defence's kind" in told.used
    assert min(untold.altered) == 1.0
    assert (told.labels == pictures()[1]).float().mean() > 0.8


@pytest.mark.parametrize("name", ["noise", "dp", "prune", "quantize", "clip", "fake_gradients"])
def test_told_of_a_defence_that_is_not_there_it_still_attacks(name):
    assert error_of(attacked(80, true, told={"name": name})) < 0.2


def test_what_is_kept_does_not_grow_with_the_rounds():
    for told in (None, {"name": "prune"}):
        attack = attacks.build(PluginSection(name="averaging", told=told)).start(setting_of(1000))
        for observation in observations(setting_of(100), *pictures(), TrainingConfig()):
            attack.observe(observation)
        assert len(attack._batches) == (64 if told else 0)
        assert all(len(kept.weight) == 64 for kept in attack._kept)


def test_little_memory_still_finds_the_samples():
    assert error_of(attacked(40, true, memory=1)) < 1e-3


def test_options_that_mean_nothing_are_refused():
    with pytest.raises(UserError, match="bits and rounding belong to quantize"):
        attacks.build(PluginSection(name="averaging", told={"name": "prune", "bits": 3}))
    with pytest.raises(UserError, match="averaging cannot run here: it needs frozen parameters"):
        attacks.build(PluginSection(name="averaging")).start(replace(setting_of(40), frozen=False))


def test_rank_one_fit_is_the_nearest_matrix_where_the_bias_agrees():
    random = torch.Generator().manual_seed(1)
    v, h = (torch.randn(5, width, generator=random, dtype=torch.float64) for width in (7, 9))
    fit = rank_one(v[:, :, None] * h[:, None, :], v)
    assert torch.allclose(fit.h, h)
    assert torch.allclose(fit.v, v)
    blurred = v[:, :, None] * h[:, None, :] + 0.1 * torch.randn(5, 7, 9, generator=random, dtype=torch.float64)
    fit = rank_one(blurred, v)
    direction = torch.linalg.svd(torch.cat([blurred, v[:, :, None]], dim=2)).U[:, :, 0]
    assert (torch.cosine_similarity(fit.v, direction).abs() > 0.99).all()
    assert (fit.error > 0.01).all()


def test_factors_of_clipped_rounds_are_found():
    random = torch.Generator().manual_seed(2)
    batches = torch.stack([torch.randperm(8, generator=random) < 3 for _ in range(30)]).double() / 3
    rounds = batches @ torch.randn(8, 40, generator=random, dtype=torch.float64)
    factor = torch.rand(30, generator=random, dtype=torch.float64) + 0.3
    shrunk = rounds * factor[:, None]
    found = unclipped(shrunk @ shrunk.T, batches)
    assert found is not None
    assert torch.allclose(found * factor, (found * factor).mean().expand(30), rtol=1e-6)
    noise = torch.randn(30, 40, generator=random, dtype=torch.float64)
    assert unclipped(noise @ noise.T, batches) is None


def test_step_three_smooths_what_is_known_badly():
    model = build_bottom(PluginSection(name="cafe_cnn", fc1=16, fc2=8), (1, 8, 8), 3, 0)
    x = pictures()[0][:4]
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        h = representation(model, "fc1", x).double()
    off = 0.3 * h.norm(dim=1, keepdim=True) / h.shape[1] ** 0.5
    blurred = h + off * torch.randn(h.shape, generator=random, dtype=torch.float64)

    def inverted(smoothness: float) -> Tensor:
        return invert_inexact(
            model, "fc1", blurred, torch.full((4,), 0.3), shape=(1, 8, 8), seed=0, device="cpu",
            options=InversionOptions(search_steps=20, polish_steps=20), smoothness=smoothness, progress=lambda *_: None,
        )  # fmt: skip

    assert (inverted(0.4) - x).square().mean() < (inverted(0.0) - x).square().mean()
