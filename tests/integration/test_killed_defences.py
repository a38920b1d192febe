"""kill -9 in runs of other kinds: defences that keep count, horizontal federations, labels at the coordinator."""

import contextlib
import json

import pytest

import vfl
from tests.integration.command_support import cafe, start, wait_for
from tests.integration.federation_support import Federation, assert_same_numbers

CONFIG = """
seed: 3
data: {name: digits, samples: 200, test_samples: 20}
federation: {workers: 2, batch_size: 10, rounds: 80, rejoin_timeout: 120, round_timeout: 120, checkpoint_every: 10,
  fixed_secrets: true, when_withheld: continueHOW}
model: {name: mlp, hidden: [16]}
training: {optimizer: adam, lr: 0.001, evaluate_every: 40}
transcript: true
defence: DEFENCE
"""
DP = "{name: dp, epsilon: 10, clip: 3.0, batches: known}"
TRIPS = "{name: breaker, limit: 0.5}"
AT_COORDINATOR = ", label_holder: coordinator"
KINDS = {
    "dp": ("", DP),
    "breaker": ("", "{name: breaker, limit: 0.9}"),
    "horizontal with dp": (", kind: horizontal", DP),
    "horizontal with breaker": (", kind: horizontal", "{name: breaker, limit: 0.9}"),
    "fake gradients that are redrawn": ("", "{name: fake_gradients, nu: 3, tau: 0.3, redraws: 1000}"),
    "labels at the coordinator": (AT_COORDINATOR, "{name: none}"),
    "labels at the coordinator with dp": (AT_COORDINATOR, DP),
}


def written(folder, how, defence):
    config = folder / "run.yaml"
    config.write_text(CONFIG.replace("HOW", how).replace("DEFENCE", defence))
    return config


def test_a_killed_worker_goes_on_with_what_its_breaker_had_counted(tmp_path):
    config = written(tmp_path, "", TRIPS)
    expected = vfl.simulate(config, out=tmp_path / "undisturbed").summary
    assert all(20 < number < 80 for number in expected["withheld"].values())  # both trip, in the second epoch
    assert expected["withheld"].keys() == {"0", "1"}
    federation = Federation(config, tmp_path / "out")
    with contextlib.closing(federation):
        workers = [federation.worker(number, "--state", tmp_path / f"state-{number}") for number in (0, 1)]
        federation.reaches(10)
        workers[1].kill()
        federation.worker(1, "--state", tmp_path / "state-1")
        federation.finished()
    summary = assert_same_numbers(federation.out, tmp_path / "undisturbed")
    assert summary["withheld"] == expected["withheld"]
    assert len(summary["disturbances"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_coordinator_label_holder_and_worker_change_no_number(kind, tmp_path):
    config = written(tmp_path, *KINDS[kind])
    done = cafe("run", config, "--out", tmp_path / "undisturbed", "--quiet")
    assert done.returncode == 0, done.stderr
    federation = Federation(config, tmp_path / "out")
    with contextlib.closing(federation):
        workers = [federation.worker(number, "--state", tmp_path / f"state-{number}") for number in (0, 1)]
        federation.reaches(15)
        federation.server.kill()
        federation.server.wait(30)
        federation.serve("--resume")
        for number, after in ((1, 30), (0, 45), (1, 60)):
            federation.reaches(after)
            workers[number].kill()
            workers[number] = federation.worker(number, "--state", tmp_path / f"state-{number}")
        federation.finished()
    summary = assert_same_numbers(federation.out, tmp_path / "undisturbed")
    expected = json.loads((tmp_path / "undisturbed" / "summary.json").read_text())
    assert summary["withheld"] == expected["withheld"]
    assert len(summary["disturbances"]) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("defence", [TRIPS, DP])
def test_a_stopped_run_with_a_defence_that_keeps_count_is_resumed_to_the_same_numbers(defence, tmp_path):
    config, out = written(tmp_path, "", defence), tmp_path / "out"
    vfl.simulate(config, out=tmp_path / "undisturbed")
    running = start("run", config, "--out", out, "--quiet", tag=str(tmp_path))
    wait_for(lambda: (out / "transcript" / "round-0000012.safetensors").exists() or running.poll() is not None)
    running.terminate()
    running.communicate(timeout=120)
    assert not (out / "transcript" / "round-0000080.safetensors").exists()
    done = cafe("run", config, "--out", out, "--quiet", "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_numbers(out, tmp_path / "undisturbed")
    found, expected = (json.loads((one / "summary.json").read_text()) for one in (out, tmp_path / "undisturbed"))
    assert found["withheld"] == expected["withheld"]
    assert found["defence"] == expected["defence"]
