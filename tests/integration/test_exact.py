"""`exact` in a real federation: the photographs come back from the gradients, live and from a transcript."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from vfl.config import load_config
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.local.launch import check

CONFIG = """
data: {name: photos, samples: 16, tile: 16}
federation: {workers: 4, batch_size: 4, epochs: 3}
attack: {name: exact}
"""


def cafe(*arguments):
    command = [sys.executable, "-m", "vfl.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


def test_photographs_come_back_from_three_epochs_live_and_offline(config, tmp_path):
    out = tmp_path / "out"
    done = cafe("run", config, "--out", out, "--set", "transcript=true")
    assert done.returncode == 0, done.stderr
    assert "rebuilt 16 of 16 images" in done.stdout
    attack = json.loads((out / "summary.json").read_text())["attack"]
    assert attack["psnr_min"] > 30
    assert attack["label_accuracy"] == 1
    arrays = np.load(out / "recovered.npz")
    assert np.nanmax(arrays["certificates"]) < 1e-3
    assert {path.name for path in out.glob("photograph_*.png")} == {"photograph_china.png", "photograph_flower.png"}

    offline = cafe("attack", out / "transcript", "--out", tmp_path / "offline", "--set", "attack.method=subspaces")
    assert offline.returncode == 0, offline.stderr
    again = json.loads((tmp_path / "offline" / "summary.json").read_text())["attack"]
    assert again["psnr_mean"] == pytest.approx(attack["psnr_mean"])


@pytest.mark.slow
def test_a_single_gradient_is_enough_for_a_small_batch(config, tmp_path):
    changes = ["--set", "federation.epochs=1", "--set", "attack.trust_indices=false", "--set", "data.samples=8"]
    done = cafe("run", config, "--out", tmp_path / "out", *changes)
    assert done.returncode == 0, done.stderr
    attack = json.loads((tmp_path / "out" / "summary.json").read_text())["attack"]
    assert attack["used"] == ["parameters", "gradients"]
    assert attack["cells"] == 2
    assert attack["share_30db"] == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            ["federation.epochs=1", "attack.method=subspaces"],
            "needs 2 epochs (8 rounds) for 16 samples in batches of 4",
        ),
        (["federation.batch_size=16", "attack.method=subspaces"], "every batch holds all 16 samples"),
        (["attack.method=magic"], "attack.method"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(config, changes, words):
    with pytest.raises(UserError, match=re.escape(words)):
        check(changed := load_config(config, changes), load_data(changed))
