"""A refusal is no verdict: it says what the attack needs, what it found, and which attacks can run instead."""

import pickle
from pathlib import Path

import pytest

from attacker.interface import AttackPlugin, Lack, Observation, Progress, Recovery, RefusalError, attacks
from attacker.start import refusals, start_attack
from tests.bank import bank_config, write_files
from tests.support import small_config
from vfl import simulate
from vfl.config import parse_config
from vfl.datasets.slices import data_facts, load_data
from vfl.errors import UserError
from vfl.folder.summary import load_summary
from vfl.folder.verdict import verdict
from vfl.local.launch import run_federation
from vfl.observation import Setting
from vfl.plan.workload import setting_of
from vfl.registry import PluginSection

NONE_ABOUT_SAFETY = "That says nothing about safety; these attacks can run here"


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """A bank and a shop train under Adam 1e-3, in batches that no layer of theirs holds."""
    files = write_files(tmp_path_factory.mktemp("bank"))
    federation = {"workers": 2, "batch_size": 32, "epochs": 3, "label_holder": 1}
    config = parse_config(bank_config(files, federation=federation), "the test")
    return setting_of(config, data_facts(config))


def test_every_refusal_says_what_is_needed_and_found_and_gives_no_advice_to_the_defender(bank: Setting) -> None:
    refused = {name: refusal for name, refusal in refusals(bank).items() if refusal}
    assert {"least_squares", "averaging", "bn"} <= set(refused) < set(attacks.builtin_names())
    for name, refusal in refused.items():
        assert isinstance(refusal, RefusalError), name
        assert all(lack.needs and lack.found for lack in refusal.lacks)
        assert str(refusal).startswith(f"attack {name} cannot run here: ")
        assert " set " not in str(refusal)
        assert " use a model" not in str(refusal)


def test_every_refusal_is_followed_by_what_can_run_and_that_starts(bank: Setting) -> None:
    able = [name for name, refusal in refusals(bank).items() if refusal is None]
    with pytest.raises(UserError) as refused:
        start_attack(PluginSection(name="least_squares"), bank)
    assert str(refused.value).endswith(f"{NONE_ABOUT_SAFETY} (attack.name): {', '.join(able)}")
    for name in able:
        start_attack(PluginSection(name=name), bank)


def test_those_that_are_named_run_to_their_end(tmp_path: Path) -> None:
    config = bank_config(write_files(tmp_path, customers=64), federation={"workers": 2, "batch_size": 32, "epochs": 2})
    config["federation"]["label_holder"] = 1
    with pytest.raises(UserError, match=NONE_ABOUT_SAFETY) as refused:
        simulate(config | {"attack": {"name": "averaging"}})
    named = str(refused.value).rpartition("(attack.name): ")[2].split(", ")
    assert "cafe" in named
    for name in named:
        quick = {"iterations": 1} if "iterations" in attacks.find(name).model_fields else {}
        done = simulate(config | {"attack": {"name": name, **quick}})
        assert done.result.attack.exact is not None, name


def test_an_attack_that_its_options_alone_keep_from_running_is_among_them(bank: Setting) -> None:
    section = PluginSection.model_validate({"name": "dlg", "disaggregate": True})
    with pytest.raises(UserError, match=r"dlg with disaggregate cannot run .*, dlg with its default options, "):
        start_attack(section, bank)
    assert refusals(bank)["dlg"] is None
    assert isinstance(refusals(bank, section)["dlg"], RefusalError)


class Never(AttackPlugin):
    """Refuses everything."""

    def start(self, setting: Setting) -> None:  # type: ignore[override]
        """Refuse."""
        raise RefusalError("never", Lack("more", "there is less", by="magic"))


def test_an_attack_of_the_users_own_is_followed_by_them_too(bank: Setting) -> None:
    with pytest.raises(
        UserError, match=f"never cannot run here: by magic it needs more, and there is less. {NONE_ABOUT_SAFETY}"
    ):
        start_attack(PluginSection(name=f"{__name__}:Never"), bank)


class Late(AttackPlugin):
    """Finds out after the last round that it has too few."""

    def start(self, setting: Setting) -> "Late":
        """Begin."""
        return self

    def observe(self, observation: Observation) -> None:
        """Take a round."""

    def recover(self, progress: Progress) -> Recovery:
        """Give up."""
        raise UserError("attack late: 24 samples need more rounds")


def test_an_attack_that_gives_up_after_the_rounds_has_shown_nothing_and_the_summary_says_so(tmp_path: Path) -> None:
    config = small_config(attack={"name": f"{__name__}:Late"}, federation={"workers": 2, "rounds": 2})
    with pytest.raises(UserError, match="24 samples need more rounds"):
        run_federation(config, load_data(config), tmp_path)
    found = verdict(load_summary(tmp_path))
    assert found.state == "open"
    said = "came to no result: attack late: 24 samples need more rounds. That says nothing about safety."
    assert found.sentence.endswith(said)


def test_where_no_attack_can_run_that_is_said(bank: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "names", lambda: ["none", "least_squares"])
    with pytest.raises(UserError, match="nothing about safety; no other attack can run here with its default options"):
        start_attack(PluginSection(name="least_squares"), bank)


def test_a_refusal_crosses_processes_whole() -> None:
    refusal = RefusalError("mine", Lack("gold", "there is lead"))
    again = pickle.loads(pickle.dumps(refusal))
    assert (str(again), again.lacks) == (str(refusal), refusal.lacks)
