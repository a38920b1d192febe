"""`cafe check`: transcripts that are whole, broken, cut or hostile, and one that a program without torch wrote."""

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import jsonschema
import numpy as np
import psutil
import pytest
import torch

import vfl
from tests.fuzz.support import little_memory
from tests.support import small_config
from tests.vfl.elsewhere.loop_support import data, networks, recorded
from vfl.cli.check import check
from vfl.errors import UserError
from vfl.files.tensor_file import read_tensors, write_tensors
from vfl.folder.transcript import Transcript, _checksum
from vfl.models.whole import known_model

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("whole"), epochs=1)


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "transcript"))


def test_a_whole_transcript_is_described_with_the_attacks_that_can_run(whole, capsys):
    check(whole)
    said = capsys.readouterr().out
    assert "whole: every file has its checksum" in said
    assert "samples: 24 of shape 20, 4 classes" in said
    assert "rounds: 6, batches of 4; parameters: 6 versions; model: layers" in said
    assert "\n  exact: can run\n" in said
    assert "\n  least_squares: it needs frozen parameters" in said


def meta_with(**changes):
    """Change keys of meta.json, with a checksum that fits."""

    def damage(folder):
        meta = json.loads((folder / "meta.json").read_text())
        del meta["sha256"]
        for key, value in changes.items():
            *parents, last = key.split("__")
            node = meta
            for parent in parents:
                node = node[parent]
            node[last] = value
        (folder / "meta.json").write_text(json.dumps({**meta, "sha256": _checksum(meta)}))

    return damage


def cut(folder):
    path = folder / "round-0000003.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


def turned(folder):
    path = folder / "round-0000003.safetensors"
    whole = bytearray(path.read_bytes())
    whole[-5] ^= 1
    path.write_bytes(whole)


def without(name):
    return lambda folder: (folder / name).unlink()


def linked(folder):
    (folder / "round-0000002.safetensors").unlink()
    (folder / "round-0000002.safetensors").symlink_to("/etc/passwd")


def piped(folder):
    (folder / "meta.json").unlink()
    os.mkfifo(folder / "meta.json")


def text(content):
    return lambda folder: (folder / "meta.json").write_text(content)


def told(change, about=None, file="round-0000003.safetensors"):
    """Change a file's tensors, with a checksum that fits."""

    def damage(folder):
        tensors, said = read_tensors(folder / file, checked=True)
        said.pop("sha256")
        tensors = {name: one for name, one in {**tensors, **change}.items() if one is not None}
        write_tensors(folder / file, tensors, {**said, **(about or {})}, checked=True)

    return damage


def twice(folder):
    text = (folder / "meta.json").read_text()
    (folder / "meta.json").write_text(text.replace('"samples":', '"samples": 7, "samples":', 1))


def large(folder):
    with (folder / "round-0000003.safetensors").open("r+b") as file:
        file.truncate(8 << 30)


def pooled(size):
    """A network of no parameters that would make very much of four numbers."""
    halves = [{"sample_shape": [1, 2, 2], "start": [0, row, 0], "stop": [1, row + 1, 2]} for row in (0, 1)]
    layers = [{"kind": "AdaptiveAvgPool2d", "options": {"output_size": size}}, {"kind": "Flatten"}]
    return meta_with(setting__boxes=halves, config__model__layers=layers, config__model__bottoms={})


SLICE = {"sample_shape": [20], "start": [0], "stop": [12.0]}
FC1 = {"kind": "Linear", "options": {"in_features": 12, "out_features": 8}}
LAYER = {"kind": "Linear", "options": {"in_features": 12, "out_features": 10**9, "bias": True}}


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (cut, "round-0000003.safetensors is damaged: it was cut short or changed"),
        (turned, "round-0000003.safetensors is damaged"),
        (without("round-0000002.safetensors"), "round-0000006.safetensors|round-0000002.safetensors"),
        (without("parameters-0000001.safetensors"), "parameters-0000001.safetensors cannot be read"),
        (without("meta.json"), "is not a transcript: there is no meta.json"),
        (linked, "round-0000002.safetensors cannot be read: a link, which is not followed"),
        (piped, "not a plain file"),
        (text("[" * 100_000), "is not a transcript"),
        (text('{"format": 2}'), "meta.json is damaged"),
        (text('{"format": 9}'), "not a transcript of format 2"),
        (meta_with(setting__samples=10**12), "whole numbers from 1 on that fit"),
        (meta_with(setting__boxes=None), "boxes is None, expected a list of slices"),
        (meta_with(setting__shares=[None]), r"shares is \[None\], expected a list of numbers"),
        (meta_with(setting__unkown=["indices"]), "it has a key that no setting has: unkown"),
        (meta_with(config__training__lr=float("nan")), "NaN is no number that JSON has"),
        (meta_with(setting="x"), "does not describe a run's setting: setting is 'x', expected keys and values"),
        (meta_with(setting__samples=5), "as the round's samples, expected numbers"),
        (meta_with(setting__unknown=["labels"]), "unknown is .*, expected some of"),
        (meta_with(setting__unknown=["batch_size"]), "indices tell the batch's size"),
        (meta_with(setting__unknown=["indices"]), "gradients of this run's model"),
        (meta_with(config__model__name="os:system"), "names code of its own to be imported, model.name os:system"),
        (meta_with(config__model__layers=[{"kind": "eval"}]), "expected one of Linear"),
        (meta_with(config__model__layers=[LAYER]), "bytes, and .* are the limit"),
        (meta_with(config__model__layers=[]), "for fc1.weight|cannot|must map"),
        (meta_with(config__model__layers=[{"kind": "ReLU", "name": "../../x"}]), "is not the name of a layer"),
        (meta_with(config__model__layers=[{"kind": "Linear", "options": {"device": "cuda"}}]), "has no option device"),
        (
            meta_with(
                config__model__layers=[FC1, {"kind": "GroupNorm", "options": {"num_groups": 0, "num_channels": 8}}]
            ),
            "a layer cannot be made: integer modulo by zero",
        ),
        (
            meta_with(config__model__layers=[FC1, {"kind": "MaxPool2d", "options": {"kernel_size": []}}]),
            "cannot run on",
        ),
        (meta_with(config__model__layers=[{"kind": "ReLU", "name": "forward"}]), "attribute 'forward' already exists"),
        (meta_with(config__model__layers=[{"kind": "ReLU"}] * 9_999), "should have at most 1000 items"),
        (pooled(20_000), "AdaptiveAvgPool2d makes 3200000000 bytes of two samples, .* at most"),
        (meta_with(setting__boxes=[SLICE, SLICE]), "its slices have bounds that are no whole numbers"),
        (meta_with(setting__schedule="often"), "schedule is 'often', expected one of epochs"),
        (meta_with(setting__seat="nobody"), "seat is 'nobody', expected coordinator"),
        (meta_with(setting__batch_size=25), "batches of 25 of 24 samples"),
        (meta_with(setting__batch_size=3), "names 4 samples, and a round of this run has 3 at the most"),
        (meta_with(setting__samples=10**8), "10+ samples of shape 20: to recover them takes .* GB"),
        (meta_with(more=1), "has a key that no transcript has: more"),
        (twice, "the key 'samples' stands there twice"),
        (large, "has 8589934592 bytes, and a file of this run has .* at the most"),
        (told({"indices": torch.tensor([0, -1, 2, 3])}), r"expected numbers \(int64\) from 0 on, below 24"),
        (told({"indices": None}), "does not hold a round: it has no indices"),
        (told({"../../x": torch.ones(2)}), r"holds \d+ tensors, of which \d+ are gradients"),
        (told({}, {"round": "-3"}), "does not hold a round$"),
        (told({}, {"version": "../../x"}), "does not hold a round$"),
        (told({"top.bias": torch.full((4,), torch.inf)}), "values of bias that are not finite"),
        (told({"../x": torch.ones(2)}, file="parameters-0000003.safetensors"), r"of which \d+ are parameters of this"),
        (told({"top.bias": None}, file="parameters-0000003.safetensors"), "has for bias nothing"),
    ],
)
def test_a_broken_or_hostile_transcript_is_one_sentence_and_takes_little_memory(damage, sentence, copy, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=8 << 30))
    damage(copy)
    with little_memory(), pytest.raises(UserError, match=sentence) as raised:
        check(copy)
    assert "\n" not in str(raised.value)


def test_the_folder_above_a_transcript_is_told_from_one(copy, tmp_path):
    above = tmp_path / "run"
    above.mkdir()
    copy.rename(above / "transcript")
    with pytest.raises(UserError, match=r"run is not a transcript: there is no meta.json: is it .*run/transcript\?"):
        check(above)


def test_the_command_ends_with_the_sentence_and_exit_code_2(copy):
    cut(copy)
    command = [sys.executable, "-m", "vfl.cli", "check", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("cafe: ")
    assert "Traceback" not in done.stderr


def without_torch() -> types.ModuleType:
    """The example's module, loaded as a copy elsewhere would be."""
    module = types.ModuleType("write_transcript")
    exec((ROOT / "examples" / "write_transcript.py").read_text(), module.__dict__)
    return module


def test_a_writer_without_torch_makes_a_transcript_that_is_taken(tmp_path, capsys):
    x, y = data()
    bottoms, top = networks()
    rows = [4, 0, 2]
    torch.nn.functional.cross_entropy(
        top(torch.cat([bottoms[0](x[rows, :12]), bottoms[1](x[rows, 12:])], dim=1)), y[rows]
    ).backward()
    held = [{name: p.detach().numpy() for name, p in one.named_parameters()} for one in (*bottoms, top)]
    given = [{name: p.grad.numpy() for name, p in one.named_parameters()} for one in (*bottoms, top)]
    shown = json.loads((recorded(tmp_path / "ours", epochs=1) / "meta.json").read_text())
    writer = without_torch()
    with writer.Transcript(tmp_path / "theirs", shown["config"], shown["setting"]) as transcript:
        transcript.parameters(1, held[:2], held[2])
        transcript.round(1, 1, given[:2], given[2], indices=rows)
    check(tmp_path / "theirs")
    assert "rounds: 1" in capsys.readouterr().out
    (read,) = Transcript(tmp_path / "theirs")
    assert read.indices.tolist() == rows
    assert np.array_equal(read.gradients.top["weight"], given[2]["weight"])
    assert known_model(Transcript(tmp_path / "theirs").setting, read.parameters)


HEAD = small_config(
    federation={"workers": 3, "batch_size": 12, "label_holder": 2, "label_holder_features": False},
    data={"name": "digits", "samples": 24, "test_samples": 0},
    adversary="label_holder",
    auxiliary=10,
    attack={"name": "inverse_network"},
    transcript=True,
)


@pytest.fixture
def head(tmp_path):
    """What a server with the labels and the top model saw, as a run of ours has it, and as the writer puts it."""
    seen = []
    vfl.simulate(HEAD, out=tmp_path / "ours", on_round=seen.append)
    ours = tmp_path / "ours" / "transcript"
    meta = json.loads((ours / "meta.json").read_text())
    known = Transcript(ours).setting.held.auxiliary

    def write(folder, outputs=lambda one: one, known=known):
        with without_torch().Transcript(folder, meta["config"], meta["setting"]) as transcript:
            if known is not None:
                transcript.known(known.numpy())
            for one in seen:
                top, gradients = ({n: p.numpy() for n, p in each.items()} for each in (one.top, one.top_gradients))
                transcript.parameters(one.round, [], top)
                sent, answers = ([part.numpy() for part in each] for each in (one.outputs, one.answers))
                transcript.outputs(one.round, one.round, outputs(sent), answers, gradients, one.indices.numpy())
        return folder

    return write, ours


def test_what_a_server_with_the_head_saw_is_taken_from_the_writer_like_a_run_of_ours(head, tmp_path, capsys):
    write, ours = head
    check(write(tmp_path / "theirs"))
    said = capsys.readouterr().out
    assert "seen by: the label holder" in said
    assert "\n  inverse_network: can run\n" in said
    for left, right in zip(Transcript(tmp_path / "theirs"), Transcript(ours), strict=True):
        assert left.indices.tolist() == right.indices.tolist()
        for kind in ("outputs", "answers"):
            assert all(map(torch.equal, getattr(left, kind), getattr(right, kind)))
        assert all(torch.equal(left.top_gradients[name], one) for name, one in right.top_gradients.items())


def test_outputs_that_do_not_fit_and_what_is_not_there_are_a_sentence_each(head, tmp_path):
    write, _ = head
    narrow, endless = (lambda sent: [sent[0][:, :-1], *sent[1:]]), (lambda sent: [sent[0] / 0, *sent[1:]])
    for at, (change, sentence) in enumerate(
        [
            ({"outputs": narrow}, "has for output.0 .* the run's model .* is it of another run"),
            ({"outputs": endless}, "has values of output.0 that are not finite"),
            ({"known": None}, "lacks held.safetensors, what the party that wrote it holds itself"),
        ]
    ):
        with np.errstate(all="ignore"):
            folder = write(tmp_path / str(at), **change)
        with pytest.raises(UserError, match=sentence) as raised:
            check(folder)
        assert "\n" not in str(raised.value)


def test_the_writer_imports_neither_torch_nor_this_project():
    code = "import sys; import write_transcript; assert not {'torch', 'vfl'} & sys.modules.keys()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "examples", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_recorded_and_what_a_run_writes_fit_the_schema(whole, tmp_path):
    schema = json.loads((ROOT / "docs" / "transcript.schema.json").read_text())
    vfl.simulate(small_config(transcript=True, attack={"name": "none"}), out=tmp_path)
    for folder in (whole, tmp_path / "transcript"):
        jsonschema.validate(json.loads((folder / "meta.json").read_text()), schema)


@pytest.mark.slow
def test_an_audit_takes_a_recorded_transcript(tmp_path):
    folder = recorded(tmp_path / "own", epochs=3, truth=data())
    command = [
        sys.executable,
        "-m",
        "vfl.cli",
        "audit",
        str(folder),
        "--budget",
        "1m",
        "--out",
        str(tmp_path / "audit"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    findings = json.loads((tmp_path / "audit" / "audit.json").read_text())["findings"]
    assert any(one["attack"] == "exact" for one in findings)
