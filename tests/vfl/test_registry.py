import sys
import textwrap

import pytest

from attacker.interface import attacks
from vfl.errors import UserError
from vfl.models import models
from vfl.registry import PluginSection


def test_a_plugin_of_ones_own_is_named_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        textwrap.dedent("""
        from torch import nn
        from vfl.models import SplitModel

        class Flat(SplitModel):
            width: int = 3
            def bottom(self, shape):
                return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], self.width))

        not_a_plugin = 5
        """)
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert models.build(PluginSection(name="my_models:Flat", width=4)).bottom((6,))[1].out_features == 4
    with pytest.raises(UserError, match="not a plug-in class"):
        models.build(PluginSection(name="my_models:not_a_plugin"))
    with pytest.raises(UserError, match=r"not a plug-in class .*AttackPlugin"):
        attacks.build(PluginSection(name="my_models:Flat"))
    with pytest.raises(UserError, match="cannot be imported"):
        models.build(PluginSection(name="my_models:Missing"))


def test_a_plugin_of_another_package_is_found_by_entry_point(tmp_path, monkeypatch):
    (tmp_path / "other_attack.py").write_text(
        "from attacker.interface import AttackPlugin\nclass Other(AttackPlugin):\n    '''Another.'''\n"
    )
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cafe.attacks]\nother = other_attack:Other\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "other" in attacks.names()
    assert attacks.find("other").__name__ == "Other"


def test_an_unknown_name_or_option_is_named():
    with pytest.raises(
        UserError, match=r"attack\.name: there is no attack called 'magic'; choose one of .*least_squares"
    ):
        attacks.build(PluginSection(name="magic"))
    with pytest.raises(UserError, match=r"model\.hiden: there is no such key"):
        models.build(PluginSection(name="mlp", hiden=[3]))
