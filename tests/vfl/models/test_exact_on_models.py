"""`exact` on networks that people bring: what it recovers beside autograd's own h, the data and the labels."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from attacker.exact import Exact
from attacker.exact.workers.tails import bypassed
from attacker.interface import Recovery, attacks, silent
from attacker.steady import dropout
from examples import architectures
from vfl.config import ModelSection
from vfl.datasets import datasets
from vfl.errors import UserError
from vfl.local.one_process import observations
from vfl.models import build_bottom
from vfl.models.layers import representation
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import Box, partition
from vfl.registry import PluginSection

CLASSES = 4


def own(name: str, **more) -> ModelSection:
    return ModelSection(name=f"examples.architectures:{name}", **more)


def images(samples: int = 24) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    coarse = torch.rand(samples, 1, 3, 3, generator=random)
    x = nn.functional.interpolate(coarse, size=(8, 8), mode="bilinear")
    return (x * 255).round() / 255, torch.randint(0, CLASSES, (samples,), generator=random)


def setting_for(x: Tensor, model: ModelSection, **changes) -> Setting:
    boxes = tuple(partition(tuple(x.shape[1:]), 2))
    return replace(Setting(model, boxes, CLASSES, len(x), 4, "epochs", 24, True, 3, "cpu"), **changes)


def attacked(setting: Setting, x: Tensor, y: Tensor, **options) -> Recovery:
    attack = Exact(**{"step_three": False, **options}).start(setting)
    for observation in observations(setting, x, y, TrainingConfig()):
        attack.observe(observation)
    return attack.recover(silent)


def errors(setting: Setting, recovery: Recovery, x: Tensor, unit: bool = False) -> Tensor:
    """Return the relative errors of h (samples, workers) of samples that are in no cell with others."""
    alone = [n for n in range(len(x)) if n not in {m for cell in recovery.cells for m in cell}]
    found = []
    for worker, (box, layer) in enumerate(zip(setting.boxes, recovery.layers, strict=True)):
        model = build_bottom(setting.model, box.shape, setting.seed, worker)
        with torch.no_grad():
            h = representation(model, layer, box.cut(x).contiguous())[alone]
        h = h / h.norm(dim=1, keepdim=True) if unit else h
        found.append((recovery.representations[worker][alone] - h).norm(dim=1) / h.norm(dim=1))
    return torch.stack(found, dim=1)


@pytest.mark.parametrize(
    "name", ["tanh_cnn", "groupnorm_cnn", "batchnorm_cnn", "residual_cnn", "small_transformer", "patch_transformer"]
)
def test_representations_and_labels_whatever_the_network(name):
    x, y = images()
    setting = setting_for(x, own(name))
    recovery = attacked(setting, x, y)
    assert float((errors(setting, recovery, x) < 1e-3).float().mean()) >= 0.95
    assert float((recovery.labels == y).float().mean()) >= 0.9


def test_step_three_goes_back_through_any_stem():
    x, y = images(12)
    setting = setting_for(x, own("tanh_cnn", channels=16))
    recovery = attacked(setting, x, y, step_three=True)
    for box, found in zip(setting.boxes, recovery.slices, strict=True):
        assert float((found - box.cut(x)).square().mean()) < 1e-6


def test_data_that_go_past_the_layer_do_not_mislead_the_labels():
    x, y = images()
    setting = setting_for(x, own("residual_mlp"))
    model = build_bottom(setting.model, setting.boxes[0].shape, 0, 0)
    assert bypassed(model.double(), "1.block.0", setting.boxes[0].shape)
    recovery = attacked(setting, x, y)
    assert float(errors(setting, recovery, x).max()) < 1e-3
    assert torch.equal(recovery.labels, y)
    assert float(recovery.certificates.nanmedian()) < 1e-5


def test_without_a_bias_directions_are_recovered_and_the_notes_say_so():
    x, y = images()
    setting = setting_for(x, own("no_bias_cnn"))
    recovery = attacked(setting, x, y)
    assert float((errors(setting, recovery, x, unit=True) < 1e-3).float().mean()) >= 0.95
    assert bool((recovery.labels == -1).all())
    assert any("no fully connected layer has a bias" in note for note in recovery.notes)
    with pytest.raises(UserError, match=r"a bias, whose gradient tells the lengths, .* worker 0 has none"):
        Exact().start(replace(setting, frozen=False))
    with pytest.raises(UserError, match=r"by least squares it needs .* with a bias, .* worker 0 has none"):
        Exact(method="least_squares").start(setting)


def test_without_a_bias_the_data_follow_from_directions_where_convolutions_have_one():
    x, y = images(8)
    setting = setting_for(x, own("no_bias_cnn", channels=16, convolutions=True), rounds=12)
    recovery = attacked(setting, x, y, step_three=True)
    away = torch.stack(
        [(s - b.cut(x)).flatten(1).norm(dim=1) for b, s in zip(setting.boxes, recovery.slices, strict=True)]
    )
    assert float(away.median()) < 0.05


@pytest.mark.parametrize(("name", "shift"), [("layernorm_mlp", True), ("no_bias_cnn", False)])
def test_what_a_norm_or_a_missing_bias_hides_is_brightness_and_contrast_alone(name, shift):
    x, y = images(8)
    setting = setting_for(x, own(name), rounds=12)
    recovery = attacked(setting, x, y, step_three=True)
    away = []
    for box, found in zip(setting.boxes, recovery.slices, strict=True):
        for one, true in zip(found.flatten(1).double(), box.cut(x).flatten(1).double(), strict=True):
            known = torch.stack([one, torch.ones_like(one)] if shift else [one], dim=1)
            fit = known @ torch.linalg.lstsq(known, true[:, None]).solution
            away.append(float((fit[:, 0] - true).square().mean()))
    assert sorted(away)[len(away) // 2] < 1e-5


def test_a_stem_that_keeps_too_little_is_noted():
    x, y = images()
    recovery = attacked(setting_for(x, own("gap_cnn")), x, y)
    assert any("takes 16 numbers of a slice of 32" in note for note in recovery.notes)


def by_hand(shape, out: bool = True):
    from tests.vfl.models.test_layers import ByHand

    return ByHand(shape, out)


def relu_first(shape):
    return nn.Sequential(nn.ReLU(), nn.Linear(shape[0], 8))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("by_hand", "data are multiplied with a, b, c, d before out is met"),
        ("relu_first", "the data meet ReLU before anything"),
    ],
)
def test_what_keeps_the_data_from_the_layer_is_noted(model, words):
    x, y = torch.randn(8, 12, generator=torch.Generator().manual_seed(0)), torch.arange(8) % CLASSES
    section = ModelSection(name=f"{__name__}:{model}")
    recovery = attacked(setting_for(x, section, batch_size=2, rounds=8), x, y)
    assert any(words in note for note in recovery.notes)


def test_a_dense_layer_written_as_a_function_alone_is_refused_by_its_name():
    section = ModelSection(name=f"{__name__}:by_hand", out=False)
    setting = setting_for(torch.rand(8, 12), section)
    for name in ("exact", "least_squares"):
        with pytest.raises(UserError, match=r"fully connected layer.* \(a, b, c, d would be one if it were written as"):
            attacks.build(PluginSection(name=name)).start(setting)


def normed_after(shape: tuple[int, ...]) -> nn.Module:
    """Batch norm after the first dense layer that takes what a ReLU leaves."""
    dense = [nn.Linear(16 * shape[1] * shape[2], 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(shape[0], 16, 3, padding=1), nn.ReLU(), nn.Flatten(), *dense)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (ModelSection(name=f"{__name__}:normed_after"), "batch norm in training mode before the attacked layer alone"),
        (ModelSection(name="lenet"), "worker 0's model has none"),
    ],
)
def test_what_stops_it_is_said_before_the_first_round(model, sentence):
    with pytest.raises(UserError, match=sentence):
        Exact().start(setting_for(images()[0], model))


def dropped_before(shape: tuple[int, ...]) -> nn.Module:
    """Dropout in front of the only dense layer."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.LazyLinear(10)
    )


@pytest.mark.parametrize("rounds", [6, 24])
def test_no_number_of_rounds_is_asked_for_where_chance_comes_before_the_layer(rounds):
    setting = setting_for(images()[0], ModelSection(name=f"{__name__}:dropped_before"), rounds=rounds)
    with pytest.raises(UserError, match="dropout") as refused:
        Exact().start(setting)
    assert "rounds)" not in str(refused.value)


def test_dropout_inside_attention_counts_too():
    model = architectures.small_transformer((1, 8, 4))
    model[3].self_attn.dropout = 0.1
    assert any("dropout" in lack.found for lack in dropout(model, "the model"))


def test_unequal_workers_a_single_column_and_another_network_each():
    random = torch.Generator().manual_seed(1)
    x, y = torch.rand(20, 9, generator=random), torch.randint(0, CLASSES, (20,), generator=random)
    boxes = (Box((9,), (0,), (1,)), Box((9,), (1,), (9,)))
    model = ModelSection(name="mlp", hidden=[16], bottoms={1: {"name": "examples.architectures:gelu_mlp", "width": 24}})
    setting = replace(setting_for(torch.rand(20, 9), model), boxes=boxes, rounds=30)
    recovery = attacked(setting, x, y)
    for box, found in zip(boxes, recovery.slices, strict=True):
        torch.testing.assert_close(found, box.cut(x), rtol=0, atol=1e-3)
    assert torch.equal(recovery.labels, y)


def test_shared_parameters_hide_nothing():
    x, y = images()
    setting = setting_for(x, ModelSection(name="mlp", shared=True))
    recovery = attacked(setting, x, y)
    for box, found in zip(setting.boxes, recovery.slices, strict=True):
        torch.testing.assert_close(found, box.cut(x), rtol=0, atol=1e-3)


def test_values_of_either_sign_are_followed_while_the_model_trains():
    random = torch.Generator().manual_seed(2)
    x, y = torch.randn(20, 20, generator=random), torch.randint(0, CLASSES, (20,), generator=random)
    model, training = ModelSection(name="mlp", hidden=[16]), TrainingConfig(lr=0.1)
    setting = setting_for(x, model, frozen=False, rounds=30)
    attack = Exact().start(setting)
    for observation in observations(setting, x, y, training):
        attack.observe(observation)
    recovery = attack.recover(silent)
    for box, found in zip(setting.boxes, recovery.slices, strict=True):
        right = (found - box.cut(x)).abs().amax(dim=1) < 1e-2
        assert int(right.sum()) >= 17


def test_average_pooling_brings_gradients_of_one_class_together():
    """Why its certificates are worse: a batch with a class twice is almost of lower rank, and float32 is not enough."""
    data = datasets.build(PluginSection(name="digits", samples=40, test_samples=0)).load()
    conditions = {}
    for name in ("avgpool_cnn", "tanh_cnn"):
        boxes = tuple(partition(data.sample_shape, 2))
        setting = Setting(own(name), boxes, data.classes, 40, 8, "epochs", 25, True, 0, "cpu")
        rounds = list(observations(setting, data.x, data.y, TrainingConfig()))
        twice = torch.tensor([len(data.y[one.indices].unique()) < 8 for one in rounds])
        values = torch.stack([torch.linalg.svdvals(one.gradients.bottoms[1]["1.weight"].double()) for one in rounds])
        conditions[name] = values[:, 0] / values[:, 7], twice
    (average, twice), (tanh, _) = conditions["avgpool_cnn"], conditions["tanh_cnn"]
    assert average[twice].median() > 1e4 * tanh[twice].median()
    assert average[~twice].max() < 1e3
