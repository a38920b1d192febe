"""The rivals on samples whose gradients give them away, and on some that tell nothing."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attacker.interface import attacks
from attacker.matching import labels as labelling
from attacker.matching.components import components
from attacker.matching.engine import Engine
from attacker.matching.regularisers import BatchNormStatistics, Situation
from attacker.matching.solve import _Search
from tests.attacker.matching_support import CLASSES, LENET, NORMED, attacked, images, scores, setting_for
from vfl.errors import UserError
from vfl.local.one_process import observations
from vfl.maths.metrics import psnr
from vfl.models import build_bottom
from vfl.models.batch_norm import FixedBatchNorm
from vfl.models.whole import first_model
from vfl.observation import ModelTensors, Observation
from vfl.optimisers.training import TrainingConfig
from vfl.partition import assemble
from vfl.registry import PluginSection

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


def test_a_gradient_in_which_noise_leaves_no_class_tells_no_labels():
    model = PluginSection(name="mlp")
    x, y = images(4, 2)
    setting = setting_for(x, 4, model)
    engine = Engine(setting)
    (observation, *_) = observations(setting, x, y, TrainingConfig())
    noisy = tuple(torch.full_like(gradient, 5.0) for gradient in engine.flat(observation.gradients))
    told = labelling.batch_labels(engine, noisy, torch.full((4, CLASSES), 1 / CLASSES))
    assert told.tolist() == [-1] * 4


# The rivals

RUNS = {
    "dlg": {"iterations": 200, "restarts": 2},
    "idlg": {"iterations": 150},
    "gradient_leakage": {"iterations": 150},
    "sapag": {"iterations": 200, "restarts": 2},
    "cosine": {"iterations": 600},
}


@pytest.mark.parametrize("seed", [7, pytest.param(8, marks=pytest.mark.slow)])
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
    search = searched("dlg", setting_for(x, 2), x, y, restarts=3, iterations=5)
    values, _ = search.evaluate(search.start)
    assert len(values.flatten().unique()) == 3
    assert search.solution(search.start).values == values.min()


def searched(attack: str, setting, x: Tensor, y: Tensor, **options) -> _Search:
    """The search of a rival before its first step."""
    running = attacks.build(PluginSection(name=attack, **options)).start(setting)
    for observation in observations(setting, x, y, TrainingConfig()):
        running.observe(observation)
    (component,) = components(running._collector.problems(), running._engine, frozen=True)
    return _Search(component, running._recipe, setting, running._engine, random=torch.Generator().manual_seed(0))


def test_gradient_leakage_is_idlg_and_alpha_times_the_label_term():
    x, y = images(3, 20)
    setting = setting_for(x, 1)
    idlg, ours = searched("idlg", setting, x, y), searched("gradient_leakage", setting, x, y, alpha=0.5)
    assert torch.equal(idlg.start, ours.start)
    slices = [box.cut(ours.start.reshape(x.shape)) for box in setting.boxes]
    predicted = first_model(setting)(slices).softmax(1).detach()
    # the samples are in the order of their rounds
    drawn = torch.cat([o.indices for o in observations(setting, x, y, TrainingConfig())])
    distance = (predicted - one_hot(y[drawn], CLASSES)).square().sum(1)
    added = ours.evaluate(ours.start)[0] - idlg.evaluate(idlg.start)[0]
    torch.testing.assert_close(added[0], 0.5 * distance, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attack", ["cosine", "gc"])
def test_rivals_that_keep_pixels_in_range_do_so_at_every_step(attack):
    x, y = images(2, 21)
    recovery = attacked(attack, setting_for(x, 1), x, y, iterations=2, lr=0.7)
    assert all(part.min() == 0 and part.max() == 1 for part in recovery.slices)
    assert recovery.used[-1] == "pixels between 0 and 1"


# Batch norm


def test_bn_refuses_a_model_without_batch_norm_and_names_one_with():
    x, _ = images(2, 0)
    with pytest.raises(UserError, match="as cafe_cnn with batch_norm true"):
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
    assert any("tells nothing" in note for note in recovery.notes)


def test_tables_are_matched_without_pixel_range_or_smoothness():
    random = torch.Generator().manual_seed(18)
    x, y = 2 * torch.randn(2, 8, generator=random), torch.tensor([0, 4])
    setting = setting_for(x, 1, PluginSection(name="test_unbiased"), workers=2)
    recovery = attacked("idlg", setting, x, y, iterations=200)
    found = assemble(setting.boxes, list(recovery.slices))
    assert (found - x).abs().max() < 1e-2
