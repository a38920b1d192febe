"""The paper's attack as a whole: what it is told, what it refuses, and how far it gets on small data."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from attacker.cafe import Cafe
from attacker.interface import attacks, silent
from tests.attacker.cafe_support import CNN, KACZMARZ, attacked, error, images, seen, setting_for, table, whole
from vfl.errors import UserError
from vfl.local.one_process import observations
from vfl.maths.metrics import psnr
from vfl.models import SplitModel
from vfl.observation import ModelTensors
from vfl.optimisers.training import TrainingConfig
from vfl.registry import PluginSection


def test_it_is_known_by_its_name():
    assert attacks.find("cafe") is Cafe


# Whole runs


@pytest.mark.parametrize(
    "options", [{}, {"alpha": 0}, {"beta": 0}, {"gamma": 0}, {"xi": 0}, {"alpha": 0, "gamma": 0}, {"clip": True}]
)
def test_every_term_can_be_left_out(options):
    x, y = images(8)
    setting = setting_for(x, 3, 6, CNN)
    attack, recovery = attacked(setting, seen(setting, x, y), shares=(0, 0, 1), **options)
    assert attack.iterations == ([6, 6, 6] if options.get("gamma", 1) else [0, 0, 6])
    assert torch.isfinite(whole(setting, recovery, x)).all()
    assert (recovery.labels is None) == (options.get("alpha") == 0)
    if options.get("clip"):
        assert all(part.min() >= 0 and part.max() <= 1 for part in recovery.slices or ())


def test_without_alpha_no_second_derivative_is_taken(monkeypatch):
    x, y = images(8)
    setting = setting_for(x, 3, 2, CNN)
    rounds = seen(setting, x, y)

    def refuse(*_):
        raise AssertionError("the engine was asked for gradients")

    monkeypatch.setattr("attacker.matching.engine.Engine.guess", refuse)
    attacked(setting, rounds, shares=(0, 0, 1), alpha=0)
    with pytest.raises(AssertionError, match="asked for gradients"):
        attacked(setting, rounds, shares=(0, 0, 1))


def test_labels_come_along_with_the_data():
    x, y = table(12)
    setting = setting_for(x, 3, 400)
    _, recovery = attacked(setting, seen(setting, x, y), lr_three=0.1, **KACZMARZ)
    assert recovery.labels is not None
    assert torch.equal(recovery.labels, y)


def test_parameters_may_move():
    x, y = images(8)
    setting = setting_for(x, 3, 12, CNN, frozen=False)
    attack, recovery = attacked(setting, seen(setting, x, y, TrainingConfig(lr=0.05)), shares=(0, 0, 1))
    assert attack.iterations[2] == 12
    assert torch.isfinite(whole(setting, recovery, x)).all()


@pytest.mark.parametrize("alpha", [0.0, 0.01])
def test_step_three_uses_the_parameters_of_its_own_round(alpha):
    x, y = images(8)
    setting = setting_for(x, 3, 3, CNN, frozen=False)
    rounds = seen(setting, x, y, TrainingConfig(lr=0.5))
    stale = [replace(o, parameters=rounds[0].parameters) for o in rounds]
    moving, _ = attacked(setting, rounds, shares=(0, 0, 1), alpha=alpha)
    fixed, _ = attacked(setting, stale, shares=(0, 0, 1), alpha=alpha)
    assert not torch.equal(moving.variables.x[0], fixed.variables.x[0])


@pytest.mark.parametrize("options", [KACZMARZ, {"lr_one": 0.05}, {"optimiser_one": "adam", "lr_one": 1e-4}])
def test_gradients_of_zero_leave_everything_finite(options):
    x, y = images(8)
    setting = setting_for(x, 3, 4, CNN)
    rounds = []
    for o in seen(setting, x, y):
        zero = tuple({name: torch.zeros_like(g) for name, g in bottom.items()} for bottom in o.gradients.bottoms)
        rounds.append(replace(o, gradients=ModelTensors(zero, o.gradients.top)))
    _, recovery = attacked(setting, rounds, shares=(0, 0, 1), **options)
    assert recovery.slices is not None
    assert recovery.representations is not None
    drawn = torch.cat([o.indices for o in rounds]).unique()
    assert all(torch.isfinite(part[drawn]).all() for part in (*recovery.slices, *recovery.representations))


def test_one_sample_and_one_class():
    x, y = table(1)
    setting = setting_for(x, 1, 60, classes=2)
    _, recovery = attacked(setting, seen(setting, x, y.clamp(max=1)), **KACZMARZ)
    assert error(whole(setting, recovery, x), x) < 1e-3
    x, y = table(6)
    setting = setting_for(x, 2, 5, classes=1)
    _, recovery = attacked(setting, seen(setting, x, torch.zeros_like(y)), shares=(0, 0, 1))
    assert recovery.labels is not None
    assert set(recovery.labels.tolist()) <= {0, -1}


def test_the_same_seed_gives_the_same_recovery():
    x, y = images(8)
    setting = setting_for(x, 3, 6, CNN)
    rounds = seen(setting, x, y)
    (_, a), (_, b) = (attacked(setting, rounds, shares=(0, 0, 1), replay=2, lr_one=0.1) for _ in range(2))
    _, other = attacked(replace(setting, seed=4), rounds, shares=(0, 0, 1), replay=2, lr_one=0.1)
    assert torch.equal(whole(setting, a, x), whole(setting, b, x))
    assert not torch.equal(whole(setting, a, x), whole(setting, other, x))


def test_it_says_what_it_has_not_recovered():
    x, y = images(8)
    setting = setting_for(x, 2, 9, CNN, schedule="epochs")
    rounds = seen(setting, x, y)
    _, early = attacked(setting, rounds[:2], loop="nested")
    assert early.slices is None
    assert early.representations is None
    assert "Step III never began" in early.notes[1]
    _, some = attacked(setting, rounds[:3], shares=(0, 0, 1))
    missing = sorted(set(range(8)) - set(torch.cat([o.indices for o in rounds[:3]]).tolist()))
    assert len(missing) == 2
    assert some.slices is not None
    assert some.labels is not None
    assert torch.isnan(some.slices[0][missing]).all()
    assert (some.labels[missing] == -1).all()
    with pytest.raises(UserError, match="no round was observed"):
        attacked(setting, [])


# Refusals


class NoBias(SplitModel):
    """A model whose first layer has no bias."""

    def bottom(self, shape):
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 4, bias=False))


class NoLayer(SplitModel):
    """A model without a fully connected layer."""

    def bottom(self, shape):
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({"batch_size": 8}, {}, "every batch holds all 8 samples"),
        ({"model": PluginSection(name=f"{__name__}:NoBias")}, {}, "no fully connected layer with a bias"),
        ({"model": PluginSection(name=f"{__name__}:NoLayer")}, {}, "no fully connected layer"),
        ({}, {"lr_one": 0.5}, "step I diverges"),
        ({}, {"alpha": 0, "beta": 0, "gamma": 0}, "nothing to go by"),
        ({}, {"shares": (0, 0, 0)}, "shares are all 0"),
        ({"frozen": False}, {"replay": 1}, "cafe with replay cannot run here: it needs frozen parameters"),
    ],
)
def test_it_refuses_what_cannot_work(changes, options, sentence):
    x, _ = images(8)
    with pytest.raises(UserError, match=sentence):
        Cafe(**options).start(replace(setting_for(x, 3, 5, CNN), **changes))


# The bar: 80 images in batches of 8


def bar(x: Tensor, y: Tensor, xi: float) -> Tensor:
    model = PluginSection(name="cafe_cnn")
    setting = setting_for(x, 8, 400, model, workers=4, classes=10)
    options = {"replay": 4, "shares": (1, 1, 8), "lr_three": 0.2, "final_three": 0.02, "alpha": 0, "xi": xi}
    attack = Cafe(**options, **KACZMARZ).start(setting)
    for observation in observations(setting, x, y, TrainingConfig()):
        attack.observe(observation)
    return psnr(whole(setting, attack.recover(silent), x), x)


def test_forty_digits_in_batches_of_eight_reach_30_db():
    digits = load_digits()
    x = torch.tensor(digits.images[:40]).float()[:, None] / 16
    assert float(bar(x, torch.tensor(digits.target[:40]), xi=8.0).mean()) >= 30


@pytest.mark.skipif("CAFE_DATA" not in os.environ, reason="needs mnist.npz in the folder that CAFE_DATA names")
def test_forty_images_of_mnist_in_batches_of_eight_reach_30_db():
    path = Path(os.environ["CAFE_DATA"]) / "mnist.npz"
    if not path.exists():
        pytest.skip(f"there is no {path.name} in CAFE_DATA")
    with np.load(path) as file:
        x, y = file["x_train"][:40], file["y_train"][:40]
    assert float(bar(torch.tensor(x).float()[:, None] / 255, torch.tensor(y).long(), xi=25.0).mean()) >= 30
