"""The coordinator's optimiser against torch's own on the undivided model."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bench.one_process import observations
from vfl.config import TrainingConfig
from vfl.models import build_bottom, build_top, output_width
from vfl.observation import Setting
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
    ],
    ids=["sgd", "momentum", "adam"],
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
