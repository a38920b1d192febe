"""summary.json through its one schema: what is written is read back, and files of other releases are readable."""

import json
import math

import pytest

from tests.vfl.report.made import config_of, images, record_of, write_run
from vfl.folder.record import write_summary
from vfl.folder.schema import as_json, numbers_in, value_at
from vfl.folder.summary import Summary, load_summary, save_summary

OLDEST = {
    "config": {"federation": {"workers": 4}, "data": {"name": "digits"}},
    "samples": 12,
    "rounds": 3,
    "seconds": {"total": 3, "federation": 2, "attack": 1},
    "bytes": {"up": 1, "down": 2, "peer": 3},
    "train": {"loss_first": 1, "loss_last": 0.5, "test_accuracy": None},
    "attack": {"name": "exact", "used": ["gradients"], "psnr_mean": None},
}
"""The keys that other programs rely on, and nothing else."""


def test_a_summary_is_read_and_written_again_without_a_change(tmp_path):
    write_run(tmp_path, config_of(), images(12))
    before = (tmp_path / "summary.json").read_text()
    save_summary(tmp_path, load_summary(tmp_path))
    assert (tmp_path / "summary.json").read_text() == before
    assert as_json(load_summary(tmp_path)) == json.loads(before)


def test_a_summary_of_another_release_keeps_what_this_one_does_not_know(tmp_path):
    newer = OLDEST | {"phase_of_the_moon": "full", "attack": OLDEST["attack"] | {"luck": 0.5}}
    for tree in (OLDEST, newer):
        (tmp_path / "summary.json").write_text(json.dumps(tree))
        summary = load_summary(tmp_path)
        assert summary.complete
        assert summary.bytes_a_round == 2
        assert tree.items() <= (as_json(summary) | {"bytes": tree["bytes"], "train": tree["train"]}).items()


def test_losses_that_are_no_numbers_are_null_in_the_file_and_nan_here(tmp_path):
    write_summary(tmp_path, config_of(), None, record_of(2, losses=[1.0, math.nan], evaluations=[]))
    assert json.loads((tmp_path / "summary.json").read_text())["train"]["losses"] == [1.0, None]
    train = load_summary(tmp_path).train
    assert math.isnan(train.losses[1])
    assert (train.loss_first, train.loss_last, train.loss_end) == (1.0, None, None)


def test_every_number_is_where_it_says_it_is():
    summary = Summary.model_validate(OLDEST)
    numbers = list(numbers_in(Summary))
    assert len({number.key for number in numbers}) == len(numbers) > 20
    assert all(number.label for number in numbers)
    found = {number.key: value_at(summary, number.place) for number in numbers}
    assert found["seconds.round"] == pytest.approx(2 / 3)
    assert found["bytes.up"] == found["bytes.round"] - 1 == 1


@pytest.mark.parametrize(
    ("attack", "known"),
    [
        ({"labels": {"right": 0.9, "guess": 0.6, "gain": 0.3}}, 0.75),
        ({"labels": {"right": 0.5, "guess": 0.6, "gain": -0.1}}, 0.0),
        ({"columns": [{"name": "age", "exact": {"guess": 0.5, "gain": 0.5}}, {"name": "job"}]}, 0.5),
        ({"share_30db": 0.4, "psnr_mean": 20.0, "psnr_baseline": 10.0}, 0.4),
        ({}, None),
    ],
)
def test_what_is_known_is_a_share_of_what_a_guess_leaves_open(attack, known):
    summary = Summary.model_validate(OLDEST | {"attack": OLDEST["attack"] | attack})
    assert summary.attack.known == (None if known is None else pytest.approx(known))
