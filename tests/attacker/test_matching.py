"""The engine against autograd through autograd; the rivals on samples whose gradients give them away."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, one_hot

from attacker.interface import Recovery, attacks, silent
from attacker.matching import labels as labelling
from attacker.matching.components import components, depths
from attacker.matching.engine import Engine
from attacker.matching.lbfgs import LBFGS
from attacker.matching.objectives import GaussianKernel, Targets, cosine, squared
from attacker.matching.optimisers import make
from attacker.matching.regularisers import BatchNormStatistics, Situation, group_consistency, total_variation
from attacker.matching.solve import _Search
from bench.matching import Case, sides
from bench.one_process import observations
from vfl.config import TrainingConfig
from vfl.errors import UserError
from vfl.metrics import psnr
from vfl.models import SplitModel, build_bottom, models
from vfl.models.batch_norm import FixedBatchNorm
from vfl.observation import ModelTensors, Observation, Setting
from vfl.partition import Shape, assemble, partition
from vfl.referee import best_order
from vfl.registry import PluginSection

LENET = PluginSection(name="lenet")
NORMED = PluginSection(name="cafe_cnn", batch_norm=True, fc1=32, fc2=16)
CLASSES = 5


class Scaled(nn.Module):
    """A layer of its own kind, which no rule knows."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, shape[-1]))
        self.dense = nn.Linear(torch.Size(shape).numel(), 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.dense((x * self.scale).flatten(1)))


class ScaledModel(SplitModel):
    def bottom(self, shape: Shape) -> nn.Module:
        return Scaled(shape)


class Unbiased(SplitModel):
    """Its top model has no bias to read labels from."""

    def bottom(self, shape: Shape) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 12), nn.Sigmoid())

    def top(self, widths: Sequence[int], classes: int) -> nn.Module:
        return nn.Linear(sum(widths), classes, bias=False)


for name, plugin in (("test_scaled", ScaledModel), ("test_unbiased", Unbiased)):
    if name not in models.names():
        models.register(name)(plugin)


def images(samples: int, seed: int, size: int = 16) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(samples, 3, 4, 4, generator=random)
    return interpolate(coarse, size=(size, size), mode="bilinear"), torch.randint(
        0, CLASSES, (samples,), generator=random
    )


def setting_for(x: Tensor, batch_size: int, model: PluginSection = LENET, **changes) -> Setting:
    rounds = -(-len(x) // batch_size)
    boxes = tuple(partition(tuple(x.shape[1:]), changes.pop("workers", 4)))
    base = Setting(model, boxes, CLASSES, len(x), batch_size, "epochs", rounds, True, 0, "cpu")
    return replace(base, **changes)


def attacked(attack: str, setting: Setting, x: Tensor, y: Tensor, change=lambda o: o, **options) -> Recovery:
    running = attacks.build(PluginSection(name=attack, **options)).start(setting)
    for observation in observations(setting, x, y, TrainingConfig()):
        running.observe(change(observation))
    return running.recover(silent)


def scores(setting: Setting, recovery: Recovery, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return each sample's PSNR and whether its label is right, the order within a batch being free."""
    assert recovery.slices is not None
    assert recovery.labels is not None
    found = assemble(setting.boxes, list(recovery.slices))
    order = best_order(found, x, recovery.cell_of(len(x)))
    return psnr(found[order], x), recovery.labels[order] == y


# The engine


@pytest.mark.parametrize("case", [
    Case(4, 3), Case(3, 2), Case(16, 2), Case(4, 1, singles=3),
    Case(4, 3, model="lenet"), Case(4, 1, singles=3, model="lenet"), Case(4, 1, singles=3, model="mlp"),
    Case(2, 3, model="test_scaled"), Case(2, 1, singles=3, model="test_scaled"),
], ids=lambda case: f"{case.model}, {case.name}")  # fmt: skip
def test_engine_agrees_with_autograd_through_autograd(case):
    three = sides(case)
    for found, expected in zip(three.engine(), three.oracle(), strict=True):
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


def rosenbrock(x: Tensor) -> Tensor:
    return (1 - x[:, 0]).square() + 100 * (x[:, 1] - x[:, 0].square()).square()


def minimised(start: Tensor, steps: int) -> Tensor:
    optimiser, x = LBFGS(), start
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


# Labels


@pytest.mark.parametrize("model", [LENET, PluginSection(name="cafe_cnn"), PluginSection(name="test_unbiased")])
def test_the_label_of_a_single_sample_is_certain(model):
    x, y = images(8, 5)
    setting = setting_for(x, 1, model)
    assert torch.equal(attacked("idlg", setting, x, y, iterations=1).labels, y)


@pytest.mark.parametrize("model", [PluginSection(name="cafe_cnn"), PluginSection(name="mlp")])
def test_a_batch_of_an_untrained_model_tells_how_often_each_class_occurs(model):
    x, y = images(24, 6)
    setting = setting_for(x, 12, model)
    engine = Engine(setting)
    for observation in observations(setting, x, y, TrainingConfig()):
        noise = [torch.rand(12, *box.shape, generator=torch.Generator().manual_seed(1)) for box in setting.boxes]
        guess = engine.guess(engine.flat(observation.parameters), noise, torch.full((12, CLASSES), 1 / CLASSES))
        told = labelling.batch_labels(engine, engine.flat(observation.gradients), guess.logits.softmax(1))
        assert torch.equal(told, y[observation.indices].sort().values)


# The rivals

RUNS = {
    "dlg": {"iterations": 200, "restarts": 2},
    "idlg": {"iterations": 150},
    "gradient_leakage": {"iterations": 150},
    "sapag": {"iterations": 200, "restarts": 2},
    "cosine": {"iterations": 600},
}


@pytest.mark.parametrize("seed", [7, 8])
@pytest.mark.parametrize("attack", list(RUNS))
def test_single_samples_of_a_small_network_are_recovered(attack, seed):
    x, y = images(3, seed)
    setting = setting_for(x, 1, seed=seed)
    recovery = attacked(attack, setting, x, y, **RUNS[attack])
    values, right = scores(setting, recovery, x, y)
    assert values.min() >= 30
    assert right.all()


def test_a_small_batch_is_recovered_up_to_its_order():
    x, _ = images(2, 9)
    y = torch.tensor([3, 1])
    setting = setting_for(x, 2)
    recovery = attacked("idlg", setting, x, y, iterations=300)
    assert recovery.cells == ((0, 1),)
    values, right = scores(setting, recovery, x, y)
    assert values.min() >= 30
    assert right.all()


def test_disaggregated_batches_are_single_samples():
    x, y = images(6, 10)
    setting = setting_for(x, 2, rounds=3 * 8)
    recovery = attacked("idlg", setting, x, y, iterations=150, disaggregate=True)
    assert recovery.cells == ()
    values, right = scores(setting, recovery, x, y)
    assert values.min() >= 30
    assert right.all()


def test_rounds_that_share_samples_are_solved_together():
    x, y = images(4, 11)
    setting = setting_for(x, 2, schedule="uniform", rounds=8)
    collector_rounds = list(observations(setting, x, y, TrainingConfig()))
    groups = list(components(collector_rounds, Engine(setting), frozen=True))
    assert len(groups) == 1
    assert len(groups[0].tasks) == 8
    values, _ = scores(setting, attacked("idlg", setting, x, y, iterations=20), x, y)
    assert values.isfinite().all()


def test_several_seeds_agree_on_a_sample():
    x, y = images(2, 12)
    setting = setting_for(x, 1)
    values, right = scores(setting, attacked("gc", setting, x, y, iterations=200, restarts=2), x, y)
    grey = psnr(torch.full_like(x, 0.5), x)
    assert (values > grey + 10).all()
    assert right.all()


def test_restarts_never_make_the_objective_worse():
    x, y = images(2, 13)
    setting = setting_for(x, 2)
    running = attacks.build(PluginSection(name="dlg", restarts=3, iterations=5)).start(setting)
    for observation in observations(setting, x, y, TrainingConfig()):
        running.observe(observation)
    (component,) = components(running._collector.problems(), running._engine, frozen=True)
    search = _Search(component, running._recipe, setting, running._engine, torch.Generator().manual_seed(0))
    values, _ = search.evaluate(search.start)
    assert len(values.flatten().unique()) == 3
    assert search.solution(search.start).values == values.min()


# Batch norm


def test_bn_refuses_a_model_without_batch_norm_and_names_one_with():
    x, _ = images(2, 0)
    with pytest.raises(UserError, match="batch_norm: true"):
        attacks.build(PluginSection(name="bn")).start(setting_for(x, 1))


def test_batch_norm_statistics_are_the_same_at_every_party_and_describe_images():
    x, _ = images(64, 14, size=8)
    one, other = (build_bottom(NORMED, (3, 8, 8), 3, 1) for _ in range(2))
    norms = [module for module in one.modules() if isinstance(module, FixedBatchNorm)]
    twins = [module for module in other.modules() if isinstance(module, FixedBatchNorm)]
    assert len(norms) == 2
    assert all(
        torch.equal(a.mean, b.mean) and torch.equal(a.variance, b.variance) for a, b in zip(norms, twins, strict=True)
    )
    normal = norms[0](one.conv1(x))
    assert normal.mean().abs() < 0.5
    assert 0.3 < normal.std() < 3
    assert set(dict(one.state_dict())) == {name for name, _ in one.named_parameters()}


def test_batch_norm_statistics_prefer_images_like_the_models():
    x, y = images(8, 15)
    setting = setting_for(x, 8, NORMED)
    engine = Engine(setting)
    observation = next(observations(setting, x, y, TrainingConfig()))
    term = BatchNormStatistics(engine.norms)

    def misfit(pixels: Tensor) -> float:
        slices = [box.cut(pixels).contiguous() for box in setting.boxes]
        targets = one_hot(y, CLASSES).float()
        guess = engine.guess(engine.flat(observation.parameters), slices, targets)
        return float(term(Situation(pixels, targets, guess, 1)).detach())

    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    assert misfit(x) < 0.5 * misfit(noise)


def test_bn_recovers_a_single_sample_of_a_model_with_batch_norm():
    x, y = images(1, 16)
    setting = setting_for(x, 1, NORMED)
    values, right = scores(setting, attacked("bn", setting, x, y, iterations=60), x, y)
    start, _ = scores(setting, attacked("bn", setting, x, y, iterations=1), x, y)
    assert values.min() > start.max() + 3
    assert right.all()


# Degenerate input


@pytest.mark.parametrize("attack", ["dlg", "idlg", "cosine", "sapag", "gradient_leakage", "gc"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_gradients_of_zeros_give_finite_data_and_no_labels(attack, batch_size):
    x, y = images(3, 17)

    def silenced(observation: Observation) -> Observation:
        parts = (*observation.gradients.bottoms, observation.gradients.top)
        none = [{key: torch.zeros_like(tensor) for key, tensor in part.items()} for part in parts]
        return replace(observation, gradients=ModelTensors(tuple(none[:-1]), none[-1]))

    recovery = attacked(attack, setting_for(x, batch_size), x, y, silenced, iterations=3)
    assert all(part.isfinite().all() for part in recovery.slices)
    assert recovery.labels.tolist() == [-1, -1, -1]
    assert any("tell nothing" in note for note in recovery.notes)


def test_tables_are_matched_without_pixel_range_or_smoothness():
    random = torch.Generator().manual_seed(18)
    x, y = 2 * torch.randn(2, 8, generator=random), torch.tensor([0, 4])
    setting = setting_for(x, 1, PluginSection(name="test_unbiased"), workers=2)
    recovery = attacked("idlg", setting, x, y, iterations=200)
    found = assemble(setting.boxes, list(recovery.slices))
    assert (found - x).abs().max() < 1e-2


def test_depths_rise_from_the_first_layer_to_the_top():
    x, _ = images(2, 0)
    engine = Engine(setting_for(x, 1))
    found = {name: float(depth) for name, depth in zip(engine.names, depths(engine), strict=True)}
    assert found[(0, "conv1.weight")] == found[(3, "conv1.bias")] == 0
    assert found[(0, "conv3.weight")] < found[(4, "fc.bias")] == 1
