"""Transcripts of workers and label holders: read as they were written, and refused where they are not what they say."""

import hashlib
import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.seats_support import seated, seen_from, tensors_of
from tests.support import setting_of, small_config
from vfl.errors import UserError
from vfl.files.tensor_file import read_tensors, write_tensors
from vfl.folder.transcript import Transcript, TranscriptWriter
from vfl.seats import Seat, adversary_of

WORKER, HOLDER = Seat("worker", 2), Seat("label_holder", 0)


def written(folder, seat):
    """A transcript of one seat, and its rounds as autograd has them."""
    config = small_config(adversary=(adversary_of([seat]),), federation={"rounds": 2})
    draw = torch.Generator().manual_seed(1)
    x, y = torch.rand(24, 1, 8, 8, generator=draw), torch.arange(24) % 10
    whole = replace(setting_of(config), rounds=2)
    rounds = list(seen_from(seated(whole, (seat,), x, y), x, y, config.training))
    writer = TranscriptWriter(folder, config, seated(whole, (seat,), x, y))
    for observation in rounds:
        writer.observe(observation)
    return rounds


@pytest.mark.parametrize("seat", [WORKER, HOLDER])
def test_what_was_written_is_read_bit_by_bit(seat, tmp_path):
    rounds = written(tmp_path, seat)
    recorded = Transcript(tmp_path)
    assert recorded.setting.seats == (seat,)
    for found, right in zip(recorded, rounds, strict=True):
        here, there = tensors_of(found), tensors_of(right)
        assert here.keys() == there.keys()
        assert all(torch.equal(here[where], there[where]) for where in there)


def changed(folder, name, change):
    path = folder / name
    tensors, about = read_tensors(path, checked=True)
    change(tensors)
    path.unlink()
    write_tensors(path, tensors, {key: value for key, value in about.items() if key != "sha256"}, checked=True)


def put(tensors, name, tensor):
    tensors[name] = tensor


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("round-0000001", partial(put, name="answer", tensor=torch.ones(8, 3)), "answer .*shape \\(8, 3\\)"),
        ("round-0000001", partial(put, name="answer", tensor=torch.full((8, 10), torch.nan)), "not finite"),
        (
            "round-0000001",
            partial(put, name="answer.0", tensor=torch.ones(8, 10)),
            "answer.0 .*the run's model nothing",
        ),
        ("round-0000001", lambda tensors: tensors.pop("output"), "output nothing"),
        (
            "round-0000001",
            partial(put, name="indices", tensor=torch.full((8,), 99)),
            "from 0 on, below 24",
        ),
        ("parameters-0000001", partial(put, name="top.fc.bias", tensor=torch.ones(10)), "top.fc.bias"),
        ("held", partial(put, name="x.1", tensor=torch.ones(24, 1, 4, 4)), "x.1"),
        ("held", partial(put, name="x.2", tensor=torch.ones(2, 1, 4, 4)), "x.2"),
    ],
)
def test_a_workers_transcript_with_what_a_worker_does_not_see_is_refused(file, change, sentence, tmp_path):
    written(tmp_path, WORKER)
    changed(tmp_path, f"{file}.safetensors", change)
    with pytest.raises(UserError, match=sentence):
        list(Transcript(tmp_path))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"labels": [0] * 24}, "it has labels exactly if its party holds them"),
        ({"widths": [10, 10]}, "its widths are not 4 whole numbers"),
        ({"widths": [10, 10, -1, 10]}, "its widths are not from 1"),
        ({"seat": "label_holder"}, "it has labels exactly if its party holds them"),
        ({"seat": {"worker": 9}}, "the workers are 0 to 3"),
        ({"seat": ["coordinator"]}, "does not describe a run's setting"),
    ],
)
def test_a_setting_that_no_party_has_is_refused(change, sentence, tmp_path):
    written(tmp_path, WORKER)
    meta = json.loads((tmp_path / "meta.json").read_text())
    meta["setting"] |= change
    meta.pop("sha256")
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
    (tmp_path / "meta.json").write_text(json.dumps(meta | {"sha256": digest}))
    with pytest.raises(UserError, match=sentence):
        Transcript(tmp_path)


def test_a_worker_that_was_restarted_has_only_later_rounds(tmp_path):
    rounds = written(tmp_path, WORKER)
    (tmp_path / "round-0000001.safetensors").unlink()
    assert [one.round for one in Transcript(tmp_path)] == [rounds[1].round] == [2]


def test_a_transcript_without_the_slice_of_its_party_is_refused(tmp_path):
    written(tmp_path, HOLDER)
    (tmp_path / "held.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks held\.safetensors"):
        Transcript(tmp_path)
