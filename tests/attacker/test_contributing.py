"""The attack shown in CONTRIBUTING.md works as it stands there."""

import re
import sys
from pathlib import Path

import torch

from attacker.interface import attacks, silent
from vfl.local.one_process import observations
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection

ROOT = Path(__file__).parents[2]


def test_the_example_attack_finds_the_most_frequent_class(tmp_path, monkeypatch):
    code = re.search(r"```python\n(# my_attack\.py.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL).group(1)
    (tmp_path / "my_attack.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    attacks.builtin_names()  # all are registered, so that what is put back is complete
    monkeypatch.setattr(attacks, "_classes", dict(attacks._classes))
    model = PluginSection(name="mlp", hidden=[8])
    setting = Setting(model, tuple(partition((6,), 2)), 3, 30, 10, "epochs", 3, True, 0)
    attack = attacks.build(PluginSection(name="my_attack:LabelCounts")).start(setting)
    y = torch.tensor([0, 1] * 4 + [2] * 22)
    for observation in observations(setting, torch.randn(30, 6), y, TrainingConfig()):
        attack.observe(observation)
    assert attack.recover(silent).notes == ("the most frequent class is 2",)
