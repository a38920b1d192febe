"""An attack that has a state goes on from it to the same numbers, and is not shown again the rounds it has seen."""

from pathlib import Path

import pytest
import torch

from attacker.driver.remote import AttackProcess, RemoteAttack
from attacker.driver.state import States
from attacker.interface import silent
from attacker.start import start_attack
from tests.attacker.cafe_support import CNN, images, seen, setting_for
from tests.support import run_in_one_process, setting_of, small_config
from vfl.config import RunConfig
from vfl.files.tensor_file import DamagedError
from vfl.folder.transcript import Transcript, TranscriptWriter
from vfl.registry import PluginSection

ATTACK = {"name": "cafe", "switch_one": None, "switch_two": None}


@pytest.mark.parametrize(
    "options",
    [{}, {"replay": 2, "lr_one": 0.1}, {"loop": "nested", "optimiser_one": "adam"}, {"consistency": 0.1, "starts": 2}],
)
def test_cafe_goes_on_from_its_state_to_the_same_bits(options):
    x, y = images(8)
    setting = setting_for(x, 3, 8, CNN)
    rounds, section = seen(setting, x, y), PluginSection.model_validate({**ATTACK, **options})
    whole, first, second = (start_attack(section, setting) for _ in range(3))
    for observation in rounds:
        whole.observe(observation)
    for observation in rounds[:5]:
        first.observe(observation)
    second.restore(first.state())
    for observation in rounds[5:]:
        second.observe(observation)
    expected, found = whole.recover(silent), second.recover(silent)
    assert found.notes == expected.notes
    assert all(map(torch.equal, found.slices, expected.slices))
    assert torch.equal(found.labels, expected.labels)


class Run:
    """A run that keeps checkpoints every three rounds, without its workers."""

    def __init__(self, out: Path, *, transcript: bool = False) -> None:
        federation = {"rounds": 14, "checkpoint_every": 3}
        self.config: RunConfig = small_config(federation=federation, attack=ATTACK, transcript=transcript)
        self.rounds, self.setting, self.out = run_in_one_process(self.config), setting_of(self.config), out

    def attacked(self, since: int, until: int, *, ends: bool):
        """Show an attack some rounds, the ones before being in the transcript; return it, and what it recovers."""
        process = AttackProcess()
        attack = RemoteAttack(self.config, self.out, process.pipe)
        recorder = TranscriptWriter(self.out / "transcript", self.config, self.setting)
        try:
            attack.start(self.setting, rounds=since)
            shown = attack.queue.longest
            for observation in self.rounds[since:until]:
                recorder.observe(observation)
                attack.observe(observation)
            while attack._unread:
                attack._hear()
            return shown, attack.recover(silent) if ends else None
        finally:
            attack.close()
            process.end()

    def kept(self) -> list[int]:
        return sorted(int(path.stem[-7:]) for path in (self.out / "transcript").glob("round-*"))


def test_a_resumed_attack_is_shown_only_the_rounds_since_its_state_and_those_before_are_gone(tmp_path):
    run = Run(tmp_path / "stopped")
    run.attacked(0, 11, ends=False)
    assert run.kept() == [7, 8, 9, 10, 11]  # the states after rounds 6 and 9 are there
    assert States(run.out).last(14).round == 9
    assert States(run.out).last(8).round == 6
    shown, found = run.attacked(11, 14, ends=True)
    assert shown == 2
    _, expected = Run(tmp_path / "whole").attacked(0, 14, ends=True)
    assert all(map(torch.equal, found.slices, expected.slices))
    assert found.ledger == expected.ledger


def test_a_transcript_that_the_user_asked_for_is_kept_whole(tmp_path):
    run = Run(tmp_path, transcript=True)
    run.attacked(0, 11, ends=False)
    assert run.kept() == list(range(1, 12))


def test_a_damaged_state_is_passed_over_and_what_is_gone_is_said(tmp_path):
    run = Run(tmp_path)
    run.attacked(0, 11, ends=False)
    newest = max((tmp_path / "attack").iterdir())
    newest.write_bytes(newest.read_bytes()[:-8])
    assert States(tmp_path).last(14).round == 6
    assert [one.round for one in Transcript(tmp_path / "transcript").after(6)] == [7, 8, 9, 10, 11]
    with pytest.raises(DamagedError, match="has no rounds before 7: the run's attack had seen them"):
        list(Transcript(tmp_path / "transcript"))


def test_no_more_waits_for_a_slow_attack_than_the_config_allows(tmp_path):
    slow = {"name": "tests.server.slow_attack:Slow", "seconds": 0.05}
    config = small_config(federation={"rounds": 14}, attack=slow, transcript=False)
    rounds, setting = run_in_one_process(config), setting_of(config)
    size = rounds[0].gradients.nbytes
    bounded = config.model_copy(update={"waiting_gb": 3.5 * size / 1e9 + rounds[0].parameters.nbytes / 1e9})
    process = AttackProcess()
    attack = RemoteAttack(bounded, tmp_path, process.pipe)
    try:
        attack.start(setting)
        for observation in rounds:
            attack.observe(observation)
        assert attack.queue.longest <= 4
        assert len(attack.recover(silent).notes) == 15  # and it has seen them all
    finally:
        attack.close()
        process.end()
