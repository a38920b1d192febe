"""Checkpoints: what is restored goes on bit by bit, what is damaged is named, and the last good one is used."""

import resource
import time
from pathlib import Path

import pytest
import torch

from server.checkpoint import KEPT, Checkpoints, Known, State, checkpoint_name, folder_of, read_checkpoint
from server.checkpoint.resume import check_drawn, check_held, find_checkpoint, forget_later
from server.parameters import Parameters
from tests.damage import damages
from tests.support import flat, run_in_one_process, setting_of, small_config
from vfl.config import RunConfig
from vfl.errors import UserError
from vfl.files.tensor_file import DamagedError
from vfl.folder.record import Record
from vfl.folder.summary import Bytes, Disturbance, Evaluated, Train
from vfl.folder.transcript import Transcript, TranscriptWriter
from vfl.folder.transcript.files import round_name
from vfl.observation import ModelTensors
from vfl.observation.schedule import Drawn

LEFT = Disturbance(round=1, reasons=["worker 1 left in round 1"], seconds=0.5, redone=1)


def config_of(**changes) -> RunConfig:
    federation = {"rounds": 4, "checkpoint_every": 1, **changes.pop("federation", {})}
    return small_config(federation=federation, **{"transcript": False, **changes})


def state_of(config: RunConfig, rounds: int, version: int = 1) -> State:
    record = Record(
        rounds=rounds,
        seconds=1.5,
        train=Train(
            losses=[0.1 + 0.2 * number for number in range(rounds + 1)],  # one of a round that was cut off
            rates=[1e-3] * rounds,
            evaluations=[Evaluated(round=rounds, loss=0.3, accuracy=2 / 3)],
        ),
        bytes=Bytes(peer=3),
        withheld={1: rounds, 2: rounds + 1},
        disturbances=[LEFT],
    )
    return State(
        config=config.model_dump(mode="json"),
        held=("a", "b", "c", "d"),
        known=Known.of(setting_of(config), []),
        generations={1: 2},
        version=version,
        drawn="",
        at=time.time(),
        seconds=record.elapsed,
        record=record.of_whole_rounds(),
        bytes_up={0: 7},
        bytes_down={},
    )


def write(out: Path, config: RunConfig, *rounds: int) -> list[Path]:
    checkpoints = Checkpoints(out, config)
    for number in rounds:
        checkpoints.write(state_of(config, number), {"a": torch.arange(300.0) + number})
    return [folder_of(out) / checkpoint_name(number) for number in rounds]


@pytest.mark.parametrize(
    "training",
    [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
        {"lr": 0.01, "optimizer": "adam", "clip_norm": 0.1},
    ],
)
def test_restored_parameters_go_on_as_if_they_had_never_stopped(tmp_path, training):
    config = config_of(training=training, federation={"rounds": 6})
    setting = setting_of(config)
    gradients = [observation.gradients for observation in run_in_one_process(config)]
    gradients[1] = ModelTensors(({}, *gradients[1].bottoms[1:]), gradients[1].top)  # a worker withheld its upload
    undisturbed = Parameters(setting, config.training)
    for number, given in enumerate(gradients, start=1):
        undisturbed.update(number, given)
        if number == 3:
            state = state_of(config, number, undisturbed.version)
            Checkpoints(tmp_path, config).write(state, undisturbed.tensors())
    restored = Parameters(setting, config.training)
    state, tensors = read_checkpoint(folder_of(tmp_path) / checkpoint_name(3))
    restored.restore(state.version, tensors)
    for number in (4, 5, 6):
        restored.update(number, gradients[number - 1])
    expected = flat(undisturbed.current)
    assert restored.version == undisturbed.version == 7
    assert all(torch.equal(tensor, expected[name]) for name, tensor in flat(restored.current).items())


def test_parameters_of_another_model_are_refused_with_a_sentence():
    config, other = config_of(), config_of(model={"name": "mlp", "hidden": [13]})
    tensors = Parameters(setting_of(other), other.training).tensors()
    with pytest.raises(UserError, match="do not fit the config's model"):
        Parameters(setting_of(config), config.training).restore(1, tensors)


def test_the_record_comes_back_without_what_was_cut_off(tmp_path):
    config = config_of()
    (path,) = write(tmp_path, config, 3)
    state, tensors = read_checkpoint(path)
    record = state.continued()
    assert record.train.losses == [0.1, 0.1 + 0.2, 0.1 + 0.4]
    assert record.withheld == {1: 3}
    assert record.train.evaluations == [Evaluated(round=3, loss=0.3, accuracy=2 / 3)]
    assert record.disturbances == [LEFT]
    assert state.bytes_up == {0: 7}
    assert torch.equal(tensors["a"], torch.arange(300.0) + 3)


def test_the_last_two_are_kept(tmp_path):
    paths = write(tmp_path, config_of(), 1, 2, 3, 4)
    assert sorted(folder_of(tmp_path).iterdir()) == paths[-KEPT:]


def test_every_cut_and_every_changed_byte_is_noticed_and_the_file_named(tmp_path):
    (path,) = write(tmp_path, config_of(), 3)
    for what, damaged in damages(path.read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=r"checkpoint-0000003\.safetensors"):
            pytest.fail(f"{what} went unnoticed: {read_checkpoint(path)[0].rounds}")


def test_when_the_last_is_damaged_the_one_before_is_used_and_that_is_said(tmp_path):
    config = config_of()
    earlier, last = write(tmp_path, config, 2, 3)
    last.write_bytes(last.read_bytes()[:-5])
    said: list[str] = []
    found = find_checkpoint(tmp_path, config, said.append)
    assert found.state.rounds == 2
    assert said[0].startswith(f"{last} is damaged")
    assert said[1] == "going on from the checkpoint of round 2"
    forget_later(tmp_path, found)
    assert list(folder_of(tmp_path).iterdir()) == [earlier]


def test_when_all_are_damaged_each_is_named(tmp_path):
    paths = write(tmp_path, config_of(), 2, 3)
    for path in paths:
        path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(UserError) as caught:
        find_checkpoint(tmp_path, config_of(), print)
    assert all(f"{path} is damaged" in str(caught.value) for path in paths)


def test_without_a_checkpoint_there_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"--resume: there is no checkpoint in .*checkpoints: start without --resume"):
        find_checkpoint(tmp_path, config_of(), print)


def test_another_config_is_refused_and_the_key_named(tmp_path):
    write(tmp_path, config_of(), 3)
    for other, key in (
        (config_of(training={"lr": 0.25}), r"training\.lr is 0\.25 in the config and was 0\.0"),
        (config_of(federation={"rounds": 5}), r"federation\.rounds is 5 in the config and was 4"),
        (config_of(data={"name": "digits", "samples": 24}), r"data\.test_samples is null in the config and was 30"),
        (config_of(defence=[{"name": "clip"}]), r"defence"),
    ):
        with pytest.raises(UserError, match=key):
            find_checkpoint(tmp_path, other, print)
    patient = config_of(federation={"round_timeout": 7, "rejoin_timeout": 8})
    assert find_checkpoint(tmp_path, patient, print).state.rounds == 3


def test_workers_with_other_data_and_batches_drawn_otherwise_are_refused(tmp_path):
    write(tmp_path, config_of(), 3)
    found = find_checkpoint(tmp_path, config_of(), print)
    check_held(found, ("a", "b", "c", "d"))
    for held in (("a", "b", "other", "d"), ("a", "b")):
        with pytest.raises(UserError, match="worker 2 does not hold what it held when the run began"):
            check_held(found, held)
    with pytest.raises(UserError, match="the batches of the first 3 rounds come out otherwise"):
        check_drawn(found, Drawn())


@pytest.fixture
def recorded(tmp_path) -> RunConfig:
    """A run with a transcript of four rounds, and checkpoints after two and three of them."""
    config = config_of(transcript=True)
    writer = TranscriptWriter(tmp_path / "transcript", config, setting_of(config))
    for observation in run_in_one_process(config):
        writer.observe(observation)
    write(tmp_path, config, 2, 3)
    return config


def test_rounds_after_the_checkpoint_are_removed_from_the_transcript(tmp_path, recorded):
    found = find_checkpoint(tmp_path, recorded, print)
    assert (found.state.rounds, found.redone) == (3, 1)
    forget_later(tmp_path, found)
    assert Transcript(tmp_path / "transcript").rounds == 3


def test_a_checkpoint_whose_rounds_are_damaged_is_passed_over(tmp_path, recorded):
    path = tmp_path / "transcript" / round_name(3)
    path.write_bytes(path.read_bytes()[:-1])
    said: list[str] = []
    found = find_checkpoint(tmp_path, recorded, said.append)
    assert (found.state.rounds, found.redone) == (2, 2)
    assert said[0].startswith(f"{path} is damaged")
    (tmp_path / "transcript" / round_name(1)).unlink()


def test_where_only_old_rounds_are_damaged_training_may_go_on_without_the_attack(tmp_path, recorded):
    path = tmp_path / "transcript" / round_name(1)
    path.write_bytes(path.read_bytes()[:-1])
    before = sorted(tmp_path.rglob("*"))
    attacked = config_of(transcript=True, attack={"name": "exact"})
    write(tmp_path, attacked, 2, 3)
    with pytest.raises(UserError) as caught:
        find_checkpoint(tmp_path, attacked, print)
    told = str(caught.value)
    assert told.count(f"{path} is damaged") == 1
    assert "checkpoint of round 3 is good: with --set 'attack={name: none}'" in told
    assert "without --resume" not in told
    assert sorted(tmp_path.rglob("*")) == before
    said: list[str] = []
    assert find_checkpoint(tmp_path, recorded, said.append).state.rounds == 3
    assert said[0].startswith(f"{path} is damaged")


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"format": 2}'])
def test_a_damaged_description_of_the_transcript_is_written_anew(tmp_path, recorded, damage):
    meta = tmp_path / "transcript" / "meta.json"
    before = meta.read_bytes()
    meta.write_bytes(damage)
    said: list[str] = []
    assert find_checkpoint(tmp_path, recorded, said.append).state.rounds == 3
    assert "meta.json" in said[0] or "is not a transcript" in said[0]
    assert meta.read_bytes() == before


def test_what_cannot_be_written_whole_leaves_the_last_good_one(tmp_path):
    config = config_of()
    (good,) = write(tmp_path, config, 2)
    before = good.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write(tmp_path, config, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(good.with_name(checkpoint_name(3)))
    assert list(folder_of(tmp_path).iterdir()) == [good]
    assert good.read_bytes() == before


def test_no_checkpoint_is_due_unless_asked_for(tmp_path):
    never = Checkpoints(tmp_path, config_of(federation={"checkpoint_every": None}))
    assert not any((never.due(10), never.wanted(Record(rounds=10))))
    some = Checkpoints(tmp_path, config_of(federation={"checkpoint_every": 5}))
    assert [number for number in range(1, 12) if some.due(number)] == [5, 10]
    assert some.wanted(Record(rounds=3))
    assert not Checkpoints(tmp_path, config_of(), last=3).wanted(Record(rounds=3))


def test_an_attack_with_checkpoints_keeps_its_rounds():
    attack = {"attack": {"name": "least_squares"}}
    assert config_of(**attack).records
    assert not config_of().records
    quick = config_of(**attack)
    never = quick.federation.model_copy(update={"checkpoint_every": None})
    assert not quick.model_copy(update={"federation": never}).records


def test_a_state_of_another_format_is_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(State, "model_dump", lambda self, **_: {"format": 99})
    (path,) = write(tmp_path, config_of(), 3)
    with pytest.raises(DamagedError, match="is not a checkpoint of format 2, which this release reads"):
        read_checkpoint(path)
