"""What a recorded run names to be loaded: plain files are read, nothing is fetched, waited for, called or run."""

import os
import pickle

import pytest

from tests.fuzz.folder_support import recorded, soon
from tests.fuzz.support import little_memory, outcome
from vfl.cli.app import app
from vfl.datasets.torchvision_sets import Mnist
from vfl.errors import UserError

TOUCHES = b"cos\nsystem\n(S'touch was-run'\ntR."
NAMES = [f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]


def test_a_recorded_run_fetches_nothing_and_makes_no_folders(here, monkeypatch, capsys):
    from vfl import torchvision_ops  # noqa: F401, I001  (makes the next import work beside CPU torch)
    from torchvision import datasets as vision

    asked = []
    monkeypatch.setattr(vision.MNIST, "download", lambda _: asked.append(1))
    folder = recorded(here, data={"name": "mnist", "path": str(here / "data"), "download": True})
    app(["attack", str(folder), "--attack", "none"], standalone_mode=False)
    assert not asked
    assert not (here / "data").exists()
    assert "no scores, as the ground truth cannot be loaded" in capsys.readouterr().err
    app(["attack", str(folder), "--attack", "none", "--set", "data.download=true"], standalone_mode=False)
    assert asked


def test_a_recorded_run_calls_no_cluster(here):
    attack = {"name": "cafe", "inversion": {"engine": "ray", "address": "192.0.2.1:6379"}}
    with pytest.raises(UserError, match=r"names a cluster to work on, attack\.inversion\.address 192"):
        app(["attack", str(recorded(here, attack=attack))], standalone_mode=False)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_data_that_a_recorded_run_names_are_not_waited_for(here, kind, capsys):
    path = here / "data.npz"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    folder = recorded(here, data={"name": "npz", "path": str(path)})
    with soon():
        app(["attack", str(folder), "--attack", "none"], standalone_mode=False)
    assert "not a plain file" in capsys.readouterr().err


@pytest.mark.parametrize("pickled", [TOUCHES, pickle.dumps([1]), b"nonsense"])
def test_pickles_that_an_old_torchvision_left_are_not_opened(here, pickled):
    for name in ("training.pt", "test.pt"):
        path = here / "MNIST" / "processed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickled)
    with pytest.raises(UserError, match="MNIST is not complete"):
        Mnist(path=here).load()
    assert not (here / "was-run").exists()


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"\0\0\x08\x03" + b"\xff" * 12, b"\0\0\x0e\x01\0\0\0\2" + bytes(16)]
)
def test_files_that_are_not_mnists_end_with_a_sentence(here, content):
    (here / "MNIST" / "raw").mkdir(parents=True)
    for name in NAMES:
        (here / "MNIST" / "raw" / name).write_bytes(content)
    _, refusal = outcome(lambda: Mnist(path=here).load(), UserError)
    assert "MNIST" in refusal
    os.truncate(here / "MNIST" / "raw" / NAMES[0], 1 << 30)
    with little_memory():
        _, refusal = outcome(lambda: Mnist(path=here).load(), UserError)
    assert "more than any of the original files" in refusal
