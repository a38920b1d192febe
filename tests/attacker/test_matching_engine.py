"""The engine against autograd through autograd; objectives, regularisers and optimisers against their formulas."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attacker.matching.components import depths
from attacker.matching.engine import Engine, Guess
from attacker.matching.objectives import GaussianKernel, Targets, cosine, squared
from attacker.matching.optimisers import make
from attacker.matching.regularisers import Situation, group_consistency, label_fit, total_variation
from tests.attacker.matching_support import CLASSES, NORMED, images, setting_for
from vfl.bench.matching import MatchingCase, sides
from vfl.local.one_process import observations
from vfl.maths.lbfgs import Backtracking
from vfl.optimisers.training import TrainingConfig
from vfl.registry import PluginSection

# The engine


@pytest.mark.parametrize("case", [
    MatchingCase(4, 3), MatchingCase(3, 2), MatchingCase(16, 2), MatchingCase(4, 1, singles=3),
    MatchingCase(4, 3, model="lenet"), MatchingCase(4, 1, singles=3, model="lenet"),
    MatchingCase(4, 1, singles=3, model="mlp"),
    MatchingCase(2, 3, model="test_scaled"), MatchingCase(2, 1, singles=3, model="test_scaled"),
], ids=lambda case: f"{case.model}, {case.name}")  # fmt: skip
def test_engine_agrees_with_autograd_through_autograd(case):
    three = sides(case)
    for found, expected in zip(three["engine"](), three["oracle"](), strict=True):
        assert expected.norm() > 0
        assert (found - expected).norm() < 2e-5 * expected.norm()


@pytest.mark.parametrize(
    ("model", "at_once"), [("cafe_cnn", True), ("lenet", True), ("mlp", True), ("test_scaled", False)]
)
def test_single_samples_go_in_one_pass_where_the_layers_allow_it(model, at_once):
    x, _ = images(2, 0)
    assert Engine(setting_for(x, 1, PluginSection(name=model)))._all_at_once() is at_once


def test_batch_norm_models_give_each_sample_its_gradient():
    x, y = images(3, 0)
    setting = setting_for(x, 1, NORMED)
    engine = Engine(setting)
    slices = [box.cut(x).contiguous() for box in setting.boxes]
    seen = sorted(observations(setting, x, y, TrainingConfig()), key=lambda o: int(o.indices[0]))
    found = engine.guess_each(engine.flat(seen[0].parameters), slices, one_hot(y, CLASSES).float())
    for at, observation in enumerate(seen):
        for gradient, expected in zip(found.gradients, engine.flat(observation.gradients), strict=True):
            assert (gradient[at] - expected).norm() <= 1e-4 * expected.norm() + 1e-9
    assert engine._all_at_once()


# Objectives, regularisers, optimisers


def gradients_like(seed: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(2, entries, generator=random, dtype=torch.float64) for entries in (7, 3)]


def targets_like(seed: int) -> Targets:
    return Targets.of(gradients_like(seed), torch.tensor([0.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("objective", [squared, cosine, GaussianKernel(5.0), GaussianKernel(2.0, last=0.1)])
def test_objectives_have_the_derivatives_of_their_values_and_end_at_zero(objective):
    leaves = [gradient.requires_grad_() for gradient in gradients_like(0)]
    targets = targets_like(1)
    value = objective(leaves, targets)
    direction = gradients_like(2)
    slope = sum((a * b).sum() for a, b in zip(torch.autograd.grad(value.sum(), leaves), direction, strict=True))
    with torch.no_grad():
        step = 1e-6
        ahead = objective([a + step * b for a, b in zip(leaves, direction, strict=True)], targets)
        behind = objective([a - step * b for a, b in zip(leaves, direction, strict=True)], targets)
    assert torch.isclose(slope, (ahead - behind).sum() / (2 * step), rtol=1e-6)
    assert objective(targets.tensors, targets).abs().max() < 1e-12


def test_objectives_are_the_formulas_of_their_papers():
    found, targets = gradients_like(0), targets_like(1)
    a, b = torch.cat(found, 1), torch.cat(targets.tensors, 1)
    assert torch.allclose(squared(found, targets), (a - b).square().sum(1) / b.square().sum(1))
    assert torch.allclose(cosine(found, targets), 1 - torch.cosine_similarity(a, b))
    kernel = [
        1 - torch.exp(-(g - t).square().sum(1) / (4 * t.shape[1] * t.var(1, unbiased=False)))
        for g, t in zip(found, targets.tensors, strict=True)
    ]
    assert torch.allclose(GaussianKernel(4.0)(found, targets), torch.stack(kernel).mean(0))


def test_total_variation_and_consistency_are_told_problem_by_problem():
    flat, steep = torch.full((1, 3, 4, 4), 0.3), torch.arange(4.0).expand(1, 3, 4, 4)
    x = torch.cat([flat, steep])
    situation = Situation(x, torch.zeros(2, 1), guess=None, problems=2, consensus=flat.expand(2, 3, 4, 4))
    assert torch.allclose(total_variation(situation), torch.tensor([0.0, 1.0]))
    assert torch.allclose(group_consistency(situation), torch.tensor([0.0, (steep - 0.3).square().mean()]))
    assert total_variation(replace(situation, x=torch.rand(2, 9))).tolist() == [0, 0]


def test_the_label_term_is_the_squared_distance_of_the_prediction_from_the_label():
    logits = torch.tensor([[3.0, 3.0], [0.0, 0.0], [50.0, 0.0], [50.0, 0.0]])
    targets = one_hot(torch.tensor([0, 0, 0, 1]), 2).float()
    guess = Guess(torch.zeros(()), gradients=(), representations=(), logits=logits)
    assert label_fit(Situation(torch.zeros(4, 1), targets, guess, problems=2)).tolist() == [0.5, 1.0]


def rosenbrock(x: Tensor) -> Tensor:
    return (1 - x[:, 0]).square() + 100 * (x[:, 1] - x[:, 0].square()).square()


def minimised(start: Tensor, steps: int) -> Tensor:
    optimiser, x = Backtracking(), start
    for _ in range(steps):
        leaf = x.clone().requires_grad_()
        value = rosenbrock(leaf)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        x = optimiser.step(x, value.detach(), gradient)
    return optimiser.best(x)


def test_lbfgs_solves_rows_side_by_side_as_if_each_were_alone():
    start = torch.tensor([[-1.2, 1.0], [0.5, 2.0], [1.0, 1.0]], dtype=torch.float64)
    together = minimised(start, 120)
    assert (together - 1).abs().max() < 1e-5
    for row in range(3):
        assert torch.allclose(minimised(start[row : row + 1], 120), together[row : row + 1])


def test_adam_is_torchs():
    x = torch.tensor([[0.3, -2.0]])
    parameter = x.clone().requires_grad_()
    theirs, ours = torch.optim.Adam([parameter], lr=0.1), make("adam", 0.1, 10, steps_down=False)
    for _ in range(10):
        theirs.zero_grad()
        parameter.square().sum().backward()
        theirs.step()
        x = ours.step(x, x.square().sum(1), 2 * x)
    assert torch.allclose(x, parameter.detach(), atol=1e-6)


def test_depths_rise_from_the_first_layer_to_the_top():
    x, _ = images(2, 0)
    engine = Engine(setting_for(x, 1))
    found = {name: float(depth) for name, depth in zip(engine.names, depths(engine), strict=True)}
    assert found[(0, "conv1.weight")] == found[(3, "conv1.bias")] == 0
    assert found[(0, "conv3.weight")] < found[(4, "fc.bias")] == 1
