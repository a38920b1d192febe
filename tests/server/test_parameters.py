"""The coordinator's optimiser against torch's own on the undivided model."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from server.parameters import Parameters
from tests.support import flat
from vfl.errors import UserError
from vfl.local.one_process import observations
from vfl.models import build_bottom, build_top, output_width
from vfl.observation import ModelTensors, Setting
from vfl.optimisers.training import RateSchedule, TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection

SETTING = Setting(
    PluginSection(name="mlp", hidden=[5]), tuple(partition((7,), 3)), 2, 12, 5, "epochs", rounds=9, frozen=False, seed=2
)


@pytest.mark.parametrize(
    ("training", "optimizer"),
    [
        (TrainingConfig(lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
        (TrainingConfig(lr=0.3, momentum=0.8), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.8)),
        (TrainingConfig(lr=0.02, optimizer="adam"), lambda p: torch.optim.Adam(p, lr=0.02)),
        (TrainingConfig(lr=0.3, weight_decay=0.1), lambda p: torch.optim.SGD(p, lr=0.3, weight_decay=0.1)),
        (
            TrainingConfig(lr=0.02, optimizer="adam", weight_decay=0.1),
            lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.1),
        ),
    ],
    ids=["sgd", "momentum", "adam", "sgd decay", "adam decay"],
)
def test_parameters_follow_torchs_own_optimiser(training, optimizer):
    x, y = torch.randn(12, 7), torch.arange(12) % 2
    bottoms = nn.ModuleList(build_bottom(SETTING.model, box.shape, 2, m) for m, box in enumerate(SETTING.boxes))
    widths = [output_width(bottom, box.shape) for bottom, box in zip(bottoms, SETTING.boxes, strict=True)]
    top = build_top(SETTING.model, widths, 2, 2)
    whole = nn.ModuleList([*bottoms, top])
    step = optimizer(whole.parameters())
    for observation in observations(SETTING, x, y, training):
        for module, tensors in zip(whole, [*observation.parameters.bottoms, observation.parameters.top], strict=True):
            for name, parameter in module.named_parameters():
                assert torch.allclose(tensors[name], parameter, atol=1e-6)
        parts = [b(box.cut(x)[observation.indices]) for b, box in zip(bottoms, SETTING.boxes, strict=True)]
        step.zero_grad()
        cross_entropy(top(torch.cat(parts, 1)), y[observation.indices]).backward()
        step.step()


def test_frozen_parameters_keep_their_version():
    versions = [o.version for o in observations(SETTING, torch.randn(12, 7), torch.arange(12) % 2, TrainingConfig())]
    assert versions == [1] * 9


WITHOUT_OPTIMISER = """
import sys
from dataclasses import replace
from server.parameters import Parameters
from tests.server.test_parameters import SETTING, filled
from vfl.optimisers.training import TrainingConfig

lr = float(sys.argv[1])
parameters = Parameters(SETTING, TrainingConfig(lr=lr))
parameters.update(1, filled(parameters, 1.0))
parameters.tensors()
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize(("lr", "compiler"), [("0.0", "False"), ("0.1", "True")])
def test_frozen_parameters_make_no_optimiser_which_would_import_torchs_compiler(lr, compiler):
    command = [sys.executable, "-c", WITHOUT_OPTIMISER, lr]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout == f"{compiler}\n", done.stderr


def filled(parameters: Parameters, value: float) -> ModelTensors:
    """Gradients that are this value everywhere."""
    bottoms = tuple({n: torch.full_like(p, value) for n, p in b.items()} for b in parameters.current.bottoms)
    return ModelTensors(bottoms, {n: torch.full_like(p, value) for n, p in parameters.current.top.items()})


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}], ids=["momentum", "adam"])
def test_rounds_at_rate_0_leave_no_trace(optimizer):
    schedule = RateSchedule(frozen_epochs=1)  # three rounds of five of the twelve samples
    late = Parameters(SETTING, TrainingConfig(lr=0.1, weight_decay=0.1, schedule=schedule, **optimizer))
    plain = Parameters(SETTING, TrainingConfig(lr=0.1, weight_decay=0.1, **optimizer))
    before = late.current
    for number in (1, 2, 3):
        late.update(number, filled(late, 5.0))
        assert late.current is before
        assert late.version == 1
    for number in (4, 5):
        late.update(number, filled(late, 0.5))
        plain.update(number, filled(plain, 0.5))
    assert late.version == 3
    left, right = flat(late.current), flat(plain.current)
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_the_whole_models_gradient_is_clipped_and_what_was_uploaded_stays():
    parameters = Parameters(SETTING, TrainingConfig(lr=1.0, clip_norm=0.25))
    for value, norm in ((2.0, 0.25), (1e-4, None)):
        before, gradients = flat(parameters.current), filled(parameters, value)
        parameters.update(1, gradients)
        moved = torch.cat([(tensor - before[name]).flatten() for name, tensor in flat(parameters.current).items()])
        given = torch.cat([tensor.flatten() for tensor in flat(gradients).values()])
        assert torch.equal(given, torch.full_like(given, value))
        assert float(moved.norm()) == pytest.approx(norm or float(given.norm()), rel=1e-3)


def test_a_worker_without_gradients_keeps_its_parameters_under_decay_and_clipping():
    parameters = Parameters(SETTING, TrainingConfig(lr=0.1, weight_decay=0.1, clip_norm=1.0))
    before, gradients = parameters.current, filled(parameters, 1.0)
    parameters.update(1, ModelTensors(({}, *gradients.bottoms[1:]), gradients.top))
    same = [
        all(torch.equal(new[name], old[name]) for name in new)
        for new, old in zip(parameters.current.bottoms, before.bottoms, strict=True)
    ]
    assert same == [True, False, False]


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}], ids=["momentum", "adam"])
def test_what_an_optimiser_cannot_have_remembered_is_refused_before_a_step(optimizer):
    parameters = Parameters(SETTING, TrainingConfig(lr=0.1, **optimizer))
    parameters.update(1, filled(parameters, 1.0))
    whole = parameters.tensors()
    kept = [name for name in whole if name.startswith("optimizer.")]
    longest = max(kept, key=lambda name: whole[name].numel())
    wrong = [whole | {longest: whole[longest][:-1]}, whole | {longest: whole[longest].double()}]
    wrong.append(whole | {longest + "_of_another": whole[longest]})
    if "optimizer" in optimizer:
        wrong.append({name: tensor for name, tensor in whole.items() if name != longest})
    for tensors in wrong:
        with pytest.raises(UserError, match="do not fit the config's model"):
            Parameters(SETTING, TrainingConfig(lr=0.1, **optimizer)).restore(2, tensors)
    again = Parameters(SETTING, TrainingConfig(lr=0.1, **optimizer))
    again.restore(2, whole)
    again.update(2, filled(again, 1.0))


def in_doubles(shape):
    """A bottom model that computes in float64 and puts out float32."""

    class Single(nn.Module):
        def forward(self, x):
            return x.float()

    class Double(nn.Module):
        def forward(self, x):
            return x.double()

    return nn.Sequential(Double(), nn.Linear(*shape, 3, dtype=torch.float64), Single())


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}], ids=["momentum", "adam"])
def test_a_model_of_other_numbers_than_float32_is_restored_too(optimizer):
    setting = replace(SETTING, model=PluginSection(name=f"{__name__}:in_doubles"))
    parameters = Parameters(setting, TrainingConfig(lr=0.1, **optimizer))
    parameters.update(1, filled(parameters, 1.0))
    again = Parameters(setting, TrainingConfig(lr=0.1, **optimizer))
    again.restore(2, parameters.tensors())
    for one in (parameters, again):
        one.update(2, filled(one, 1.0))
    left, right = flat(parameters.current), flat(again.current)
    assert all(torch.equal(left[name], right[name]) for name in left)
