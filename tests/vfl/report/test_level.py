"""How bad it is in a word or two: never better than the numbers."""

from typing import Any

import pytest

from tests.vfl.report.made import config_of
from vfl.folder.summary import Summary
from vfl.report.facts import level


def summary_of(attack: dict[str, Any], **more: Any) -> Summary:
    parts = {"seconds": {}, "bytes": {}, "train": {}, "attack": {"name": "exact", **attack}}
    return Summary(config=config_of().model_dump(mode="json"), samples=10, rounds=1, **parts, **more)


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        ({"share_30db": 1.0, "psnr_mean": 90.0, "psnr_baseline": 10.0}, "all leaked"),
        ({"share_30db": 0.6, "psnr_mean": 40.0, "psnr_baseline": 10.0}, "mostly leaked"),
        ({"share_30db": 0.1, "psnr_mean": 10.0, "psnr_baseline": 10.0}, "partly leaked"),
        ({"share_30db": 0.0, "psnr_mean": 19.0, "psnr_baseline": 10.0}, "partly leaked"),
        ({"share_30db": 0.0, "psnr_mean": 10.5, "psnr_baseline": 10.0}, "held against this attack"),
        ({"share_exact": 0.0, "r2": 0.96}, "partly leaked"),
        ({"share_exact": 0.0, "r2": -2.0}, "held against this attack"),
        ({"share_exact": 0.0, "r2": None}, "held against this attack"),
        ({"share_30db": None, "representation_error": 1e-6}, "inner layer leaked"),
        ({"share_30db": None, "representation_error": 0.9}, "see the error"),
        ({"share_30db": None}, "not scored"),
        ({"used": []}, "no attack"),
    ],
)
def test_the_words_follow_the_numbers(attack, words):
    assert level(summary_of({"used": ["gradients"], **attack}))[1] == words


def test_a_run_that_did_not_end_is_not_finished():
    assert level(summary_of({"used": []}, ended="worker 2 left")) == ("open", "not finished")
