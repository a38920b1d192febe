"""The paper's attack: its steps against least squares, its optimisers against torch's, and whole runs on small data."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from attacker.cafe import Cafe
from attacker.cafe.attack import CafeAttack
from attacker.cafe.optimiser import RowAdam, RowSGD, cosine
from attacker.cafe.phases import Phases
from attacker.cafe.steps import inputs_objective, outputs_objective
from attacker.cafe.tv import total_variation, truncated
from attacker.interface import Recovery, attacks, silent
from attacker.least_squares import LeastSquares, pseudo_inverse
from bench.one_process import observations
from vfl.config import TrainingConfig
from vfl.errors import UserError
from vfl.metrics import psnr
from vfl.models import SplitModel
from vfl.observation import ModelTensors, Observation, Setting
from vfl.partition import partition
from vfl.registry import PluginSection

MLP = PluginSection(name="mlp", hidden=(24,))
CNN = PluginSection(name="cafe_cnn", fc1=32)
CLASSES = 5
KACZMARZ = {"optimiser_one": "scaled_sgd", "lr_one": 1.0, "optimiser_two": "scaled_sgd", "lr_two": 1.0}


def table(samples: int, columns: int = 12) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.rand(samples, columns, generator=random), torch.randint(0, CLASSES, (samples,), generator=random)


def images(samples: int, size: int = 8) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    x = nn.functional.interpolate(torch.rand(samples, 1, 3, 3, generator=random), size=(size, size), mode="bilinear")
    return x, torch.randint(0, CLASSES, (samples,), generator=random)


def setting_for(x: Tensor, batch_size: int, rounds: int, model: PluginSection = MLP, workers: int = 2, **changes):
    boxes = tuple(partition(tuple(x.shape[1:]), workers))
    return replace(Setting(model, boxes, CLASSES, len(x), batch_size, "uniform", rounds, True, 3, "cpu"), **changes)


def seen(setting: Setting, x: Tensor, y: Tensor, training: TrainingConfig | None = None) -> list[Observation]:
    return list(observations(setting, x, y, training or TrainingConfig()))


def attacked(setting: Setting, rounds: list[Observation], **options) -> tuple[CafeAttack, Recovery]:
    attack = Cafe(**options).start(setting)
    assert isinstance(attack, CafeAttack)
    for observation in rounds:
        attack.observe(observation)
    return attack, attack.recover(silent)


def error(found: Tensor, true: Tensor) -> float:
    return float((found - true).norm() / true.norm())


def whole(setting: Setting, recovery: Recovery, like: Tensor) -> Tensor:
    assert recovery.slices is not None
    x = torch.zeros_like(like)
    for box, part in zip(setting.boxes, recovery.slices, strict=True):
        box.cut(x)[...] = part
    return x


def test_it_is_known_by_its_name():
    assert attacks.find("cafe") is Cafe


# Steps I and II


@pytest.mark.parametrize(
    ("samples", "schedule", "loop"),
    [(20, "uniform", "single"), (18, "epochs", "single"), (18, "epochs", "nested")],  # 18 in fours: a short last batch
)
def test_steps_one_and_two_converge_to_least_squares(samples, schedule, loop):
    x, y = table(samples)
    setting = setting_for(x, 4, 1200, schedule=schedule)
    rounds = seen(setting, x, y)
    attack, recovery = attacked(setting, rounds, loop=loop, shares=(1, 2, 0), alpha=0, **KACZMARZ)
    inverse, rank = pseudo_inverse([o.indices for o in rounds], samples)
    assert rank == samples
    squares = LeastSquares().start(setting)
    for observation in rounds:
        squares.observe(observation)
    expected = squares.recover(silent).representations
    assert expected is not None
    assert recovery.representations is not None
    for worker in range(2):
        bias = torch.stack([o.gradients.bottoms[worker]["1.bias"] for o in rounds])
        v = inverse @ bias.double() / 4  # v_n holds 1/K of the sample's gradient
        assert error(attack.v[worker].double(), v) < 1e-3
        assert error(recovery.representations[worker], expected[worker]) < 1e-2
    assert error(whole(setting, recovery, x), x) < 1e-2  # the first layer sees the data


def test_the_papers_sgd_and_adam_converge_to_least_squares_too():
    x, y = table(20)
    setting = setting_for(x, 4, 1500)
    attack, recovery = attacked(setting, seen(setting, x, y), lr_one=0.1, lr_two=0.02, shares=(0, 1, 0), alpha=0)
    assert error(whole(setting, recovery, x), x) < 0.05
    assert attack.iterations[0] == 1500


def test_replayed_rounds_save_rounds():
    x, y = table(20)
    setting = setting_for(x, 4, 100)
    rounds = seen(setting, x, y)
    inverse, _ = pseudo_inverse([o.indices for o in rounds], 20)
    true = inverse @ torch.stack([o.gradients.bottoms[0]["1.bias"] for o in rounds]).double() / 4
    plain, _ = attacked(setting, rounds, alpha=0, **KACZMARZ)
    replayed, _ = attacked(setting, rounds, alpha=0, replay=10, **KACZMARZ)
    assert error(replayed.v[0].double(), true) < 0.1 * error(plain.v[0].double(), true)


def test_objectives_have_autograds_gradients_and_curvature():
    random = torch.Generator().manual_seed(0)
    v, h = torch.randn(5, 7, generator=random), torch.randn(5, 9, generator=random)
    bias, weight = torch.randn(7, generator=random), torch.randn(7, 9, generator=random)
    for variable, value, found in [
        (v, lambda v: (v.sum(0) - bias).square().sum(), outputs_objective(v, bias)),
        (h, lambda h: (v.T @ h - weight).square().sum(), inputs_objective(h, v, weight, curved=True)),
    ]:
        leaf = variable.clone().requires_grad_()
        loss = value(leaf)
        (gradient,) = torch.autograd.grad(loss, leaf)
        hessian = torch.autograd.functional.hessian(value, variable).reshape(variable.numel(), -1)
        assert found[0] == pytest.approx(float(loss.detach()), rel=1e-5)
        torch.testing.assert_close(found[1], gradient, rtol=1e-4, atol=1e-4)
        assert found[2] == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-4)


# Optimisers


def test_adam_by_rows_is_torchs_when_every_sample_is_in_every_batch():
    random = torch.Generator().manual_seed(0)
    ours = torch.rand(6, 3, 2, generator=random)
    theirs = ours.clone().requires_grad_()
    adam, oracle = RowAdam(ours, (0.9, 0.99), 1e-8), torch.optim.Adam([theirs], lr=0.03, betas=(0.9, 0.99))
    for _ in range(20):
        gradient = torch.randn(6, 3, 2, generator=random)
        adam.step(ours, torch.randperm(6, generator=random).sort().values, gradient, 0.03)
        theirs.grad = gradient
        oracle.step()
    torch.testing.assert_close(ours, theirs.detach())


def test_each_row_has_its_own_adam():
    random = torch.Generator().manual_seed(0)
    together = torch.rand(4, 3, generator=random)
    start, alone = together.clone(), [together[n : n + 1].clone() for n in range(4)]
    adam, singles = RowAdam(together, (0.9, 0.999), 1e-8), [RowAdam(row, (0.9, 0.999), 1e-8) for row in alone]
    for _ in range(15):
        rows = torch.randperm(3, generator=random)[:2]  # the last row is never drawn
        gradient = torch.randn(2, 3, generator=random)
        adam.step(together, rows, gradient, 0.1)
        for n, own in zip(rows.tolist(), gradient, strict=True):
            singles[n].step(alone[n], torch.tensor([0]), own[None], 0.1)
    torch.testing.assert_close(together, torch.cat(alone))
    assert torch.equal(together[3], start[3])
    assert adam.counts[3] == 0
    assert not adam.first[3].any()
    assert not adam.second[3].any()


def test_sgd_scaled_by_the_curvature_solves_a_batch_at_rate_one():
    v, bias = torch.rand(6, 4), torch.rand(4)
    rows = torch.tensor([0, 2, 5])
    _, gradient, curvature = outputs_objective(v[rows], bias)
    RowSGD(scaled=True).step(v, rows, gradient, 1.0, curvature)
    torch.testing.assert_close(v[rows].sum(0), bias)


def test_the_rate_falls_to_its_share_and_stays_there():
    rates = [cosine(0.1, 0.02, share) for share in (0.0, 0.5, 1.0, 2.0)]
    assert rates == pytest.approx([0.1, 0.051, 0.002, 0.002])
    assert cosine(0.1, 1.0, 0.7) == pytest.approx(0.1)


# Total variation


def test_total_variation_below_the_threshold_costs_nothing():
    x = torch.tensor([[[[0.0, 1.0], [0.5, 0.5]]]], requires_grad=True)
    assert float(total_variation(x.detach())) == pytest.approx(0.5 + 0.5 + 1.0 + 0.0)
    assert float(truncated([x, x], 1.9).detach()) == pytest.approx(4.0)
    assert torch.autograd.grad(truncated([x], 1.9), x)[0].abs().sum() > 0
    below = truncated([x, x], 2.1)
    assert float(below) == 0.0
    assert not below.requires_grad


def test_tables_have_no_total_variation():
    assert float(total_variation(torch.rand(4, 7))) == 0.0


# Phases


def ran(phases: Phases, rounds: int, objectives: tuple[float, float] = (1.0, 1.0)) -> list[list[int]]:
    history = []
    for _ in range(rounds):
        steps: list[int] = []

        def step(number: int, value: float, steps: list[int] = steps):
            return lambda _share: (steps.append(number), value)[1]

        phases.iterate((step(1, objectives[0]), step(2, objectives[1]), step(3, 0.0)))
        history.append(steps)
    return history


def test_nested_loops_run_one_step_after_the_other():
    history = ran(Phases("nested", 9, (1, 1, 1), (1e-9, 5e-9)), 11)
    assert history == [[1]] * 3 + [[2]] * 3 + [[3]] * 5


def test_nested_loops_can_leave_steps_out():
    assert ran(Phases("nested", 4, (0, 1, 1), (None, None)), 4) == [[2]] * 2 + [[3]] * 2


def test_the_single_loop_switches_at_its_thresholds_and_goes_on_with_all_steps():
    assert ran(Phases("single", 10, (1, 0, 0), (1e-9, 5e-9)), 3, (1e-10, 1e-9)) == [[1, 2, 3]] * 3
    assert ran(Phases("single", 10, (1, 0, 0), (1e-9, 5e-9)), 3, (1e-10, 6e-9)) == [[1, 2]] * 3
    assert ran(Phases("single", 10, (1, 0, 0), (1e-9, 5e-9)), 3, (2e-9, 0.0)) == [[1]] * 3
    assert ran(Phases("single", 10, (1, 0, 0), (None, None)), 3) == [[1, 2, 3]] * 3


def test_the_single_loop_waits_no_longer_than_its_shares_say():
    assert ran(Phases("single", 10, (2, 3, 5), (1e-9, 5e-9)), 7) == [[1]] * 2 + [[1, 2]] * 3 + [[1, 2, 3]] * 2


def test_a_step_knows_how_far_it_is():
    shares: list[tuple[int, float]] = []
    phases = Phases("nested", 8, (1, 1, 2), (None, None))
    for _ in range(8):
        phases.iterate(tuple(lambda share, n=n: (shares.append((n, share)), 1.0)[1] for n in range(3)))
    assert shares == [(0, 0.0), (0, 0.5), (1, 0.0), (1, 0.5), (2, 0.0), (2, 0.25), (2, 0.5), (2, 0.75)]


# Whole runs


@pytest.mark.parametrize(
    "options", [{}, {"alpha": 0}, {"beta": 0}, {"gamma": 0}, {"xi": 0}, {"alpha": 0, "gamma": 0}, {"clip": True}]
)
def test_every_term_can_be_left_out(options):
    x, y = images(8)
    setting = setting_for(x, 3, 6, CNN)
    attack, recovery = attacked(setting, seen(setting, x, y), shares=(0, 0, 1), **options)
    assert attack.iterations == [6, 6, 6]
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
    assert not torch.equal(moving.x[0], fixed.x[0])


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
        ({"frozen": False}, {"replay": 1}, "replay needs frozen parameters"),
    ],
)
def test_it_refuses_what_cannot_work(changes, options, sentence):
    x, _ = images(8)
    with pytest.raises(UserError, match=sentence):
        Cafe(**options).start(replace(setting_for(x, 3, 5, CNN), **changes))


# The bar: 80 images in batches of 8


def bar(x: Tensor, y: Tensor, xi: float) -> Tensor:
    model = PluginSection(name="cafe_cnn")
    setting = setting_for(x, 8, 800, model, workers=4, classes=10)
    options = {"replay": 4, "shares": (1, 1, 8), "lr_three": 0.2, "final_three": 0.02, "alpha": 0, "xi": xi}
    attack = Cafe(**options, **KACZMARZ).start(setting)
    for observation in observations(setting, x, y, TrainingConfig()):
        attack.observe(observation)
    return psnr(whole(setting, attack.recover(silent), x), x)


def test_eighty_digits_in_batches_of_eight_reach_30_db():
    digits = load_digits()
    x = torch.tensor(digits.images[:80]).float()[:, None] / 16
    assert float(bar(x, torch.tensor(digits.target[:80]), xi=8.0).mean()) >= 30


@pytest.mark.skipif("CAFE_DATA" not in os.environ, reason="needs mnist.npz in the folder that CAFE_DATA names")
def test_eighty_images_of_mnist_in_batches_of_eight_reach_30_db():
    path = Path(os.environ["CAFE_DATA"]) / "mnist.npz"
    if not path.exists():
        pytest.skip(f"there is no {path.name} in CAFE_DATA")
    with np.load(path) as file:
        x, y = file["x_train"][:80], file["y_train"][:80]
    assert float(bar(torch.tensor(x).float()[:, None] / 255, torch.tensor(y).long(), xi=25.0).mean()) >= 30
