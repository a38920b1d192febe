"""An attack on a recorded run finds what the attack beside the run found, estimates on the way included."""

import numpy as np

from attacker.driver.offline import attack_transcript
from attacker.driver.remote import AttackProcess, RemoteAttack
from attacker.interface import silent
from tests.support import run_in_one_process, setting_of, small_config
from vfl.folder.transcript import Transcript, TranscriptWriter


def test_its_estimates_on_the_way_are_those_of_the_attack_beside_the_run(tmp_path):
    attack = {"name": "cafe", "switch_one": None, "switch_two": None}
    config = small_config(federation={"rounds": 6}, training={"lr": 0.1}, attack=attack, snapshots=3)
    rounds, setting = run_in_one_process(config), setting_of(config)
    recorder, process = TranscriptWriter(tmp_path / "transcript", config, setting), AttackProcess()
    beside = RemoteAttack(config, tmp_path, process.pipe)
    try:
        beside.start(setting)
        for observation in rounds:
            recorder.observe(observation)
            beside.observe(observation)
        beside.recover(silent)
    finally:
        beside.close()
        process.end()
    attack_transcript(Transcript(tmp_path / "transcript"), config, tmp_path / "offline")
    for name in ("00000003.npz", "00000006.npz"):
        live, offline = (np.load(folder / "snapshots" / name)["x"] for folder in (tmp_path, tmp_path / "offline"))
        np.testing.assert_array_equal(live, offline)
