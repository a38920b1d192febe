"""Flower's own processes run a vertical federation, its server records, and the attack recovers everybody's rows."""

import os
import subprocess
import venv
from pathlib import Path

import pytest
import torch

from examples.flower.run import prepare, prepare_head, run
from tests.integration.command_support import cafe
from vfl.folder.summary import load_summary
from vfl.folder.transcript import Transcript


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    """The bin folder of an environment with flwr, which does not go with this project's pins: CAFE_FLOWER, or new."""
    if named := os.environ.get("CAFE_FLOWER"):
        return Path(named)
    folder = tmp_path_factory.mktemp("flower")
    venv.create(folder, with_pip=True)
    install = [folder / "bin" / "pip", "install", "--quiet", "flwr>=1.41,<2", "numpy", "safetensors"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=900)
    if done.returncode:
        pytest.skip(f"flwr cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")
    return folder / "bin"


@pytest.mark.slow
def test_a_recorded_flower_federation_gives_its_rows_away_with_the_numbers_of_ours(flower, tmp_path):
    prepare(tmp_path)
    done = run(tmp_path, flower)
    theirs, ours = (list(Transcript(folder / "transcript")) for folder in (tmp_path, tmp_path / "ours"))
    assert len(theirs) == len(ours) == done["rounds"] == 3
    for left, right in zip(theirs, ours, strict=True):
        assert left.indices.tolist() == right.indices.tolist()
        for kind in ("gradients", "parameters"):
            a, b = ((*one.bottoms, one.top) for one in (getattr(left, kind), getattr(right, kind)))
            for own, other in zip(a, b, strict=True):
                assert own.keys() == other.keys()
                assert all(torch.allclose(own[name], other[name], atol=1e-6) for name in other)
    attacked = cafe("attack", tmp_path / "transcript", "--attack", "exact", "--out", tmp_path / "exact", "--quiet")
    assert attacked.returncode == 0, attacked.stderr
    found, expected = (load_summary(tmp_path / name).attack for name in ("exact", "ours"))
    assert found.share_30db == expected.share_30db == 1.0
    assert found.certified == expected.certified


@pytest.mark.slow
def test_a_flower_server_with_the_head_rebuilds_slices_from_outputs_as_ours_does(flower, tmp_path):
    prepare_head(tmp_path)
    done = run(tmp_path, flower, head=True)
    theirs, ours = (list(Transcript(folder / "transcript")) for folder in (tmp_path, tmp_path / "ours"))
    assert len(theirs) == len(ours) == done["rounds"] == 3
    for left, right in zip(theirs, ours, strict=True):
        assert left.indices.tolist() == right.indices.tolist()
        for kind in ("outputs", "answers"):
            pairs = zip(getattr(left, kind), getattr(right, kind), strict=True)
            assert all(torch.allclose(own, other, atol=1e-5) for own, other in pairs)
        for kind in ("top", "top_gradients"):
            own, other = getattr(left, kind), getattr(right, kind)
            assert own.keys() == other.keys()
            assert all(torch.allclose(own[name], other[name], atol=1e-5) for name in other)
    out = tmp_path / "inverse"
    attacked = cafe("attack", tmp_path / "transcript", "--attack", "inverse_network", "--out", out, "--quiet")
    assert attacked.returncode == 0, attacked.stderr
    found, expected = (load_summary(folder).attack for folder in (out, tmp_path / "ours"))
    assert found.psnr_mean == pytest.approx(expected.psnr_mean, abs=0.1)
    assert found.psnr_mean > found.psnr_baseline + 4
