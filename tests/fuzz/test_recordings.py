"""Recorded runs and checkpoints that may be anybody's: what does not fit is named, and nothing is ever imported."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from attacker.driver import offline
from attacker.driver.offline import check_size
from server.checkpoint import read_checkpoint
from tests.fuzz.support import CORPUS, abouts, fuzz, little_memory, mutated, outcome, resigned, seeds, written
from vfl.cli.app import app
from vfl.errors import UserError
from vfl.files.tensor_file import read_tensors, write_tensors
from vfl.folder.transcript import Transcript, _checksum
from vfl.limits import CLASSES, SAMPLES

ROUND, PARAMETERS = "round-0000001.safetensors", "parameters-0000001.safetensors"
WEIGHT = "0.bottom.1.weight"


def transcript(folder: Path, meta: bytes, files: dict[str, bytes] | None = None) -> Path:
    """A transcript's folder: the corpus's, with another meta.json, and other files where there are some."""
    whole = {path.name: path.read_bytes() for path in (CORPUS / "transcript").iterdir()}
    for name, data in {**whole, **(files or {}), "meta.json": meta}.items():
        written(folder, data, name)
    return folder


def signed(tree) -> bytes:
    """A meta.json with a checksum that fits: it keeps out accidents, and nobody who wants to deceive."""
    tree = {key: value for key, value in tree.items() if key != "sha256"}
    return json.dumps({**tree, "sha256": _checksum(tree)}).encode()


@pytest.fixture(scope="module", autouse=True)
def all_is_imported(tmp_path_factory):
    """What a reader imports the first time is no memory that a file takes."""
    list(Transcript(transcript(tmp_path_factory.mktemp("good"), seeds("meta")[0])))


@fuzz
@given(
    mutated("meta"), st.sampled_from([path.name for path in (CORPUS / "transcript").iterdir()]), mutated("transcript")
)
@example(b"[" * 100_000, "round-0000001.safetensors", b"")
def test_any_transcript(tmp_path, meta, name, file):
    try:
        tree = json.loads(meta)
    except (ValueError, RecursionError):
        tree = None
    meta = signed(tree) if isinstance(tree, dict) else meta
    outcome(lambda: list(Transcript(transcript(tmp_path, meta, {name: resigned(file)}))), UserError)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        (ROUND, {"indices": torch.ones(8)}, r"torch.float32 of shape \(8,\) as the round's samples"),
        (ROUND, {"indices": torch.arange(8) + 20}, r"expected numbers \(int64\) from 0 on, below 24"),
        (ROUND, {"indices": torch.arange(8) - 1}, r"expected numbers \(int64\) from 0 on, below 24"),
        (ROUND, {"indices": torch.zeros(8, dtype=torch.int64)}, "names a sample twice"),
        (ROUND, {"indices": torch.zeros(0, dtype=torch.int64)}, "as the round's samples"),
        (ROUND, {WEIGHT: torch.ones(3)}, "has for 1.weight torch.float32 of shape"),
        (ROUND, {WEIGHT: torch.ones(12, 16, dtype=torch.int64)}, "has for 1.weight torch.int64 of shape"),
        (ROUND, {WEIGHT: torch.full((12, 16), torch.nan)}, "values of 1.weight that are not finite"),
        (ROUND, {"0.bottom.other": torch.ones(3)}, "has for other torch.float32"),
        (ROUND, {"nobody's": torch.ones(3)}, "tensors, of which 18 are gradients"),
        (PARAMETERS, {WEIGHT: torch.ones(3)}, "has for 1.weight torch.float32 of shape"),
        (PARAMETERS, {WEIGHT: None}, "has for 1.weight nothing, the run's model torch.float32"),
    ],
)
def test_a_file_that_does_not_fit_its_run_is_named_whatever_its_checksum(here, name, changes, words):
    folder = transcript(here, seeds("meta")[0])
    tensors, about = read_tensors(folder / name, checked=True)
    about.pop("sha256")
    tensors = {key: tensor for key, tensor in {**tensors, **changes}.items() if tensor is not None}
    write_tensors(folder / name, tensors, about, checked=True)
    with pytest.raises(UserError, match=f"{name}.* {words}|{name} {words}"):
        list(Transcript(folder))


@fuzz
@given(st.sampled_from(["boxes", "classes", "samples", "batch_size", "schedule"]), abouts)
def test_any_setting_of_a_transcript(tmp_path, key, value):
    tree = json.loads(seeds("meta")[0])
    tree["setting"][key] = value
    outcome(lambda: list(Transcript(transcript(tmp_path, signed(tree)))), UserError)


@fuzz
@given(mutated("state"))
@example(b"[" * 100_000)
def test_any_checkpoint(tmp_path, state):
    path = tmp_path / "checkpoint"
    write_tensors(path, {"w": torch.ones(2)}, {"state": state.decode(errors="replace")}, checked=True)
    read, refusal = outcome(lambda: read_checkpoint(path), UserError)
    assert refusal or read[0].format == 2


@fuzz
@given(st.integers(0), st.integers(0, 7), st.booleans())
def test_a_checkpoint_cut_short_or_with_one_bit_changed_is_named(tmp_path, at, bit, cut):
    path = tmp_path / "checkpoint"
    write_tensors(path, {"w": torch.arange(4)}, {"state": seeds("state")[0].decode()}, checked=True)
    data = bytearray(path.read_bytes())
    at %= len(data)
    data[at] ^= 1 << bit
    path.write_bytes(data[:at] if cut else data)
    _, refusal = outcome(lambda: read_checkpoint(path), UserError)
    assert str(path) in refusal


@pytest.mark.parametrize(
    ("section", "value", "words"),
    [
        ("model", {"name": "evil:Model"}, "names code of its own to be imported, model.name evil:Model"),
        ("data", {"name": "evil:Data"}, "names code of its own to be imported, data.name evil:Data"),
        ("attack", {"name": "evil:Attack"}, "names code of its own to be imported, attack.name evil:Attack"),
        ("attack", {"name": "../../outside"}, "a plug-in's name is made of letters"),
    ],
)
def test_a_recorded_run_can_neither_import_nor_write_elsewhere(here, section, value, words):
    (here / "evil.py").write_text("import pathlib; pathlib.Path('was-imported').touch()")
    folder = here / "run" / "transcript"
    folder.mkdir(parents=True)
    tree = json.loads(seeds("meta")[0])
    tree["config"][section] = value
    transcript(folder, signed(tree))
    with pytest.raises(UserError, match=words):
        app(["attack", str(folder)], standalone_mode=False)
    assert {path.name for path in here.rglob("*")} == {"evil.py", "run", "transcript"} | {
        path.name for path in folder.iterdir()
    }


@pytest.mark.parametrize("name", ["meta.json", ROUND, PARAMETERS])
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_recorded_file_that_has_no_end_is_named_and_not_read(here, name, kind):
    folder = transcript(here, seeds("meta")[0])
    (folder / name).unlink()
    if kind == "device":
        (folder / name).symlink_to("/dev/zero")
    else:
        os.mkfifo(folder / name)
    _, refusal = outcome(lambda: list(Transcript(folder)), UserError)
    assert name in refusal
    assert ("a link, which is not followed" if kind == "device" else "not a plain file") in refusal


@pytest.mark.parametrize("attack", ["cafe", "exact", "least_squares"])
def test_more_samples_than_this_machine_can_hold_are_refused_before_an_attack_starts(here, attack, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 << 30))
    tree = json.loads(seeds("meta")[0])
    tree["setting"]["samples"] = SAMPLES
    tree["setting"]["boxes"] = [
        {"sample_shape": [1, 1024, 1024], "start": [0, top, left], "stop": [1, top + 512, left + 512]}
        for top in (0, 512)
        for left in (0, 512)
    ]
    setting = Transcript(transcript(here, signed(tree))).setting
    with little_memory(), pytest.raises(UserError, match=r"says that it has 100000000 samples of shape 1x1024x1024: "):
        check_size(setting)
    tree["setting"]["boxes"] = json.loads(seeds("meta")[0])["setting"]["boxes"]
    folder = transcript(here, signed(tree))
    arguments = ["attack", str(folder), "--attack", attack, "--no-score", "--out", str(here / "out")]
    with (
        little_memory(),
        pytest.raises(UserError, match="says that it has 100000000 samples of shape 1x8x8: to recover"),
    ):
        app(arguments, standalone_mode=False)


def test_a_file_that_does_not_fit_is_named_before_an_attack_starts(here, monkeypatch):
    folder = transcript(here, seeds("meta")[0])
    tensors, about = read_tensors(folder / ROUND, checked=True)
    about.pop("sha256")
    write_tensors(folder / ROUND, {**tensors, WEIGHT: torch.ones(3)}, about, checked=True)
    monkeypatch.setattr(offline, "start_attack", lambda *_: pytest.fail("it starts"))
    with pytest.raises(UserError, match="is it of another run"):
        app(
            ["attack", str(folder), "--attack", "cafe", "--no-score", "--out", str(here / "out")], standalone_mode=False
        )


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_want_of_memory_is_a_sentence_and_other_errors_stay_what_they_are(here, monkeypatch, error):
    def fail(*_):
        raise raised

    monkeypatch.setattr(offline, "start_attack", fail)
    folder = transcript(here, seeds("meta")[0])
    arguments = ["attack", str(folder), "--no-score", "--out", str(here / "out")]
    raised = error
    with pytest.raises(UserError, match="too little memory to attack the recorded run, which says that it has 24"):
        app(arguments, standalone_mode=False)
    raised = RuntimeError("a fault of ours")
    with pytest.raises(RuntimeError, match="a fault of ours"):
        app(arguments, standalone_mode=False)


def test_a_recorded_run_has_no_more_classes_than_a_worker_may_say(here):
    tree = json.loads(seeds("meta")[0])
    tree["setting"]["classes"] = CLASSES + 1
    with pytest.raises(UserError, match="these are not whole numbers"):
        Transcript(transcript(here, signed(tree)))
