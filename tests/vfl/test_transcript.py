"""Transcripts on disk: what was changed or cut short is named, and never taken for what the coordinator saw."""

import json
import shutil

import pytest

from tests.damage import damages
from tests.support import assert_same, run_in_one_process, setting_of, small_config
from vfl.errors import UserError
from vfl.files.tensor_file import DamagedError
from vfl.folder.transcript import Transcript, TranscriptWriter, forget_after
from vfl.folder.transcript.files import parameters_name, round_name


@pytest.fixture(scope="module")
def rounds():
    return run_in_one_process(small_config(training={"lr": 0.1}))


@pytest.fixture(scope="module")
def written(rounds, tmp_path_factory):
    folder = tmp_path_factory.mktemp("transcript")
    config = small_config(training={"lr": 0.1})
    writer = TranscriptWriter(folder, config, setting_of(config))
    for observation in rounds:
        writer.observe(observation)
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "transcript")


def test_rounds_come_back_to_the_last_bit(folder, rounds):
    assert_same(list(Transcript(folder)), rounds)


@pytest.mark.parametrize("name", [round_name(3), parameters_name(2)])
def test_every_cut_and_every_changed_byte_is_noticed_and_the_file_named(folder, name):
    path = folder / name
    for what, damaged in damages(path.read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=name.replace(".", r"\.")):
            pytest.fail(f"{what} went unnoticed: {len(list(Transcript(folder)))} rounds")


def test_a_changed_value_in_the_description_is_noticed(folder):
    path = folder / "meta.json"
    meta = json.loads(path.read_text())
    meta["setting"]["samples"] += 1
    path.write_text(json.dumps(meta))
    with pytest.raises(UserError, match=r"meta\.json is damaged"):
        Transcript(folder)


def test_a_round_that_is_missing_or_another_ones_is_named(folder):
    (folder / round_name(2)).rename(folder / round_name(9))
    with pytest.raises(DamagedError, match=r"round-0000002\.safetensors cannot be read: No such file"):
        list(Transcript(folder))
    (folder / round_name(9)).unlink()
    shutil.copy(folder / round_name(1), folder / round_name(2))
    with pytest.raises(DamagedError, match=r"round-0000002\.safetensors holds round 1"):
        list(Transcript(folder))


def test_later_rounds_can_be_forgotten(folder, rounds):
    (folder / "round-0000005.safetensors.partial").touch()
    forget_after(folder, 2)
    assert_same(list(Transcript(folder)), rounds[:2])
    assert not list(folder.glob("*.partial"))
