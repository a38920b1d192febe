"""`docker compose up` in a real engine: the numbers of `cafe run`, exit codes, and who can see and do what."""

import contextlib
import socket
import subprocess

import numpy as np
import pytest
import torch

from tests.deploy.compose_support import IMAGE, Composed, build_image, docker, engine_answers
from tests.integration.command_support import cafe, wait_for
from vfl.config import load_config
from vfl.metrics import psnr
from vfl.results import load_summary
from vfl.slices import WorkerData, load_data, slice_for

pytestmark = [
    pytest.mark.skipif(not engine_answers(), reason="no Docker engine answers: see `docker info`, `docker compose version`"),
    pytest.mark.timeout(1500),
]

CONFIG = """
seed: 1
data: {name: photos, samples: 60, test_samples: 20}
federation: {workers: 4, batch_size: 6, epochs: 1, join_timeout: 600}
model: {name: mlp, hidden: [16]}
"""
CHOSEN = {
    "CAFE_DATASET": "digits",
    "CAFE_ATTACK": "least_squares",
    "CAFE_DEFENCE": "noise",
    "CAFE_ROUNDS": "80",
    "CAFE_SET": "seed=4 defence.scale=0.01",
}
THE_SAME = ["data.name=digits", "attack.name=least_squares", "defence={name: noise, scale: 0.01}", "seed=4"]
THE_SAME += ["federation={workers: 4, batch_size: 6, rounds: 80}"]

LONG = """
seed: 2
data: {name: digits, samples: 60, test_samples: 20}
federation: {workers: 4, batch_size: 6, rounds: 1500, join_timeout: 900, rejoin_timeout: 300}
model: {name: mlp, hidden: [16]}
attack: {name: least_squares}
defence: {name: noise, scale: 0.01}
transcript: true
"""
GATHERED = ["server", "worker-0", "worker-1", "worker-2"]


@pytest.fixture(scope="module", autouse=True)
def image(tmp_path_factory):
    yield build_image(tmp_path_factory.mktemp("image"))
    docker("image", "rm", "--force", IMAGE)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "run.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def long_config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "long.yaml"
    path.write_text(LONG)
    return path


@pytest.fixture(scope="module")
def gathering(long_config, tmp_path_factory):
    """A federation that waits for its last worker."""
    with Composed("gathering", long_config, tmp_path_factory.mktemp("gathering") / "results") as composed:
        composed.compose("up", "--detach", *GATHERED)
        yield composed


def assert_the_numbers_of_a_run(results, config, changes, tmp_path):
    settings = [word for change in changes for word in ("--set", change)]
    done = cafe("run", config, "--out", tmp_path / "here", "--quiet", *settings)
    assert done.returncode == 0, done.stderr
    found, expected = load_summary(results), load_summary(tmp_path / "here")
    assert found["train"] == expected["train"]
    assert len(found["train"]["losses"]) == found["rounds"]
    assert psnr_of_each(results) == pytest.approx(psnr_of_each(tmp_path / "here"), abs=1e-3)
    assert found["attack"]["psnr_mean"] == pytest.approx(expected["attack"]["psnr_mean"], abs=1e-3)


def psnr_of_each(results):
    with np.load(results / "recovered.npz") as arrays:
        return psnr(torch.tensor(arrays["x"]), torch.tensor(arrays["x_true"])).tolist()


def test_four_workers_give_the_numbers_of_a_run_and_leave_nothing_behind(config, tmp_path):
    with Composed("four", config, tmp_path / "results", **CHOSEN) as composed:
        done = composed.compose("up", "--exit-code-from", "server", check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "server-1 exited with code 0" in done.stdout + done.stderr
    assert composed.left() == []
    assert {"summary.json", "recovered.npz", "recovered.png"} <= {path.name for path in composed.results.iterdir()}
    assert {path.owner_id for path in owners(composed.results)} == {(1000, 1000)}
    assert_the_numbers_of_a_run(composed.results, config, THE_SAME, tmp_path)
