"""kill -9 in runs of other kinds: defences that keep count, and labels at the coordinator."""

import json

import pytest

from tests.integration.command_support import cafe
from tests.integration.federation_support import Federation, assert_same_numbers

CONFIG = """
seed: 3
data: {name: digits, samples: 60, test_samples: 20}
federation: {workers: 2, batch_size: 10, rounds: 80, rejoin_timeout: 120, round_timeout: 120, checkpoint_every: 10,
  fixed_secrets: true}
model: {name: mlp, hidden: [16]}
training: {optimizer: adam, lr: 0.001, evaluate_every: 40}
transcript: true
"""
KINDS = {
    "dp": "defence: {name: dp, epsilon: 10, clip: 3.0, batches: known}",
    "breaker": "defence: {name: breaker, limit: 0.9}",
    "labels at the coordinator": "",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_coordinator_changes_no_number_and_a_killed_worker_none_but_what_its_defence_withholds(kind, tmp_path):
    config, text = tmp_path / "run.yaml", CONFIG + KINDS[kind]
    config.write_text(text if KINDS[kind] else text.replace("workers: 2", "workers: 2, label_holder: coordinator"))
    done = cafe("run", config, "--out", tmp_path / "undisturbed", "--quiet")
    assert done.returncode == 0, done.stderr
    federation = Federation(config, tmp_path / "out")
    try:
        workers = [federation.worker(number, "--state", tmp_path / f"state-{number}") for number in (0, 1)]
        federation.reaches(15)
        federation.server.kill()
        federation.server.wait(30)
        federation.serve("--resume")
        federation.reaches(35)
        workers[1].kill()
        federation.worker(1, "--state", tmp_path / "state-1")
        federation.finished()
    finally:
        federation.close()
    if not KINDS[kind]:
        summary = assert_same_numbers(federation.out, tmp_path / "undisturbed")
        assert summary["withheld"] == {}
    else:
        found, expected = (
            json.loads((out / "summary.json").read_text()) for out in (federation.out, tmp_path / "undisturbed")
        )
        assert expected["withheld"] == {}
        (withheld,) = found["withheld"].values()
        assert found["withheld"].keys() == {"1"}
        assert withheld > 35
        same = withheld  # its upload of that round is missing, the loss before it is not
        assert found["train"]["losses"][:same] == expected["train"]["losses"][:same]
    assert len(json.loads((federation.out / "summary.json").read_text())["disturbances"]) >= 2
