import re
import sys
import textwrap

import pytest
from pydantic import field_validator

from attacker.interface import AttackPlugin, attacks
from vfl.cli.catalogue import catalogue
from vfl.errors import RunFailedError, UserError
from vfl.models import models
from vfl.registry import Plugin, PluginSection


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


def test_a_folder_called_as_a_package_of_anothers_is_searched_too(tmp_path, monkeypatch):
    for place, file in (("installed", "theirs"), ("here", "ours")):
        folder = tmp_path / place / "called_alike"
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / f"{file}.py").write_text("from vfl.models import SplitModel\nclass One(SplitModel):\n    pass\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "installed"), *sys.path])
    for module in ("called_alike.ours", "called_alike.theirs"):
        assert type(models.build(PluginSection(name=f"{module}:One"))).__module__ == module


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


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two packages: one takes names that are taken, one ends the program when it is imported."""
    (tmp_path / "taking.py").write_text(
        "from attacker.interface import AttackPlugin\nclass Mine(AttackPlugin):\n    '''Mine.'''\n"
    )
    (tmp_path / "leaving.py").write_text("raise SystemExit('no licence')\n")
    for name, entries in {
        "aaa": "exact = taking:Mine\nmine = taking:Mine\n",
        "bbb": "leaves = leaving:Mine\nmine = taking:Mine\n",
    }.items():
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[cafe.attacks]\n{entries}")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("packages")
def test_a_plugin_whose_name_is_taken_is_listed_with_what_to_call_it():
    lines = "\n".join(catalogue(attacks, options=False))
    assert "aaa has an attack plug-in exact too; a built-in one has the name, so call it taking:Mine" in lines
    assert re.search("(aaa|bbb) has an attack plug-in mine too; that of (aaa|bbb) has the name", lines)
    assert attacks.find("exact").__module__ == "attacker.exact"


@pytest.mark.usefixtures("packages")
def test_a_plugin_that_ends_the_program_when_imported_does_not_cut_the_list_short():
    lines = list(catalogue(attacks, options=False))
    assert any("leaves" in line and "cannot be imported: SystemExit: no licence" in line for line in lines)
    assert any(line.startswith("theory") for line in lines)
    with pytest.raises(UserError, match="SystemExit"):
        attacks.find("leaving:Mine")


def test_an_unknown_name_or_option_is_named():
    with pytest.raises(
        UserError, match=r"attack\.name: there is no attack called 'magic'; choose one of .*least_squares"
    ):
        attacks.build(PluginSection(name="magic"))
    with pytest.raises(UserError, match=r"model\.hiden: there is no such key"):
        models.build(PluginSection(name="mlp", hiden=[3]))


def test_a_plugin_whose_module_fails_is_named(tmp_path, monkeypatch):
    (tmp_path / "bad_module.py").write_text("raise RuntimeError('no licence\\nhere')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UserError, match=r"'bad_module:Attack' cannot be imported: RuntimeError: no licence here$"):
        attacks.build(PluginSection(name="bad_module:Attack"))


def test_errors_of_plugins_that_are_ours_keep_their_traceback():
    plugin = attacks.build(PluginSection(name="none"))
    with pytest.raises(ZeroDivisionError), attacks.guard("none", plugin, "observe"):
        _ = 1 / 0


def test_errors_of_other_plugins_are_told_with_their_place_and_what_passes_passes():
    class Other(Plugin):
        pass

    told = r"the attack plug-in mine failed in observe: ValueError: too few \(test_registry.py, line \d+\)"
    with pytest.raises(RunFailedError, match=told), attacks.guard("mine", Other(), "observe"):
        raise ValueError("too\nfew")
    with pytest.raises(UserError, match="as it was"), attacks.guard("mine", Other(), "observe"):
        raise UserError("as it was")
    with pytest.raises(KeyError), attacks.guard("mine", Other(), "observe", KeyError):
        raise KeyError("meant")


def test_a_plugin_does_not_end_the_program_but_a_person_does():
    class Other(Plugin):
        pass

    with (
        pytest.raises(RunFailedError, match="mine failed in observe: SystemExit: 3"),
        attacks.guard("mine", Other(), "observe"),
    ):
        raise SystemExit(3)
    with pytest.raises(KeyboardInterrupt), attacks.guard("mine", Other(), "observe"):
        raise KeyboardInterrupt


class Picky(AttackPlugin):
    """Fails while its options are checked."""

    how: str = ""

    @field_validator("how")
    @classmethod
    def _known(cls, how: str) -> str:
        return {"": "", "later": "later", "leaves": "leaves"}[how]

    def model_post_init(self, _context: object) -> None:
        if self.how == "later":
            raise TypeError("a bug")
        if self.how == "leaves":
            raise SystemExit(0)


@pytest.mark.parametrize(
    ("how", "told"), [("odd", "KeyError: 'odd'"), ("later", "TypeError: a bug"), ("leaves", "SystemExit: 0")]
)
def test_an_error_while_options_are_checked_bears_the_plugins_name(how, told):
    sentence = rf"the attack plug-in {__name__}:Picky failed in the check of its options: {told} \(test_registry.py"
    with pytest.raises(RunFailedError, match=sentence):
        attacks.build(PluginSection(name=f"{__name__}:Picky", how=how))
    assert attacks.build(PluginSection(name=f"{__name__}:Picky")).how == ""
    with pytest.raises(UserError, match=r"attack\.how: .*\(got 3\)"):
        attacks.build(PluginSection(name=f"{__name__}:Picky", how=3))
