"""What a run showed, in one of three states: never better than the numbers, and never more than they say."""

from typing import Any

import pytest

from tests.vfl.report.made import config_of
from vfl.cli.ending import STYLES
from vfl.folder.summary import Summary
from vfl.folder.verdict import verdict

ROWS = {"share_exact": 0.0, "exact": {"right": 0.0, "leaked": False}}
JOB = {"right": 0.64, "unknown": 0.0, "guess": 0.2, "gain": 0.44, "leaked": True}
NOTHING = {"right": 0.2, "unknown": 0.5, "guess": 0.2, "gain": 0.0, "leaked": False}


def summary_of(attack: dict[str, Any], **more: Any) -> Summary:
    parts = {"seconds": {}, "bytes": {}, "train": {}, "attack": {"name": "exact", "used": ["gradients"], **attack}}
    return Summary(config=config_of().model_dump(mode="json"), samples=300, rounds=75, **parts, **more)


def images(share: float, psnr: float, **more: Any) -> dict[str, Any]:
    return {"share_30db": share, "psnr_mean": psnr, "psnr_baseline": 10.0, **more}


@pytest.mark.parametrize(
    ("attack", "state"),
    [
        (images(1.0, 90.0), "leaked"),
        (images(0.6, 40.0), "leaked"),
        (images(0.1, 10.0), "partly"),
        (images(0.0, 19.0), "partly"),
        (images(0.0, 10.5), "guess"),
        (images(0.0, 10.5, ssim_mean=0.4, ssim_baseline=0.1), "partly"),
        (images(0.0, 10.5, ssim_mean=0.12, ssim_baseline=0.1), "guess"),
        (images(0.0, 9.0, parties=[{"worker": 2, "psnr": 24.0, "psnr_baseline": 10.0}]), "partly"),
        (ROWS | {"share_exact": 1.0, "exact": {"leaked": True}}, "leaked"),
        (ROWS | {"share_exact": 0.6, "exact": {"right": 0.6, "guess": 0.6}}, "guess"),
        (ROWS | {"share_exact": 0.1, "exact": {"leaked": True}}, "partly"),
        (ROWS | {"columns": [{"name": "age", "r2": 0.96}]}, "partly"),
        (ROWS | {"columns": [{"name": "age", "r2": -2.0}]}, "guess"),
        (ROWS | {"columns": [{"name": "job", "exact": JOB}]}, "partly"),
        (ROWS | {"columns": [{"name": "job", "exact": NOTHING}]}, "guess"),
        (ROWS | {"labels": JOB}, "partly"),
        ({"labels": JOB}, "leaked"),
        ({"labels": JOB | {"gain": 0.2}}, "partly"),
        ({"labels": NOTHING}, "guess"),
        ({"representation_error": 1e-6, "representation_baseline": 0.5}, "leaked"),
        ({"representation_error": 0.3, "representation_baseline": 0.5}, "partly"),
        ({"representation_error": 0.5, "representation_baseline": 0.5}, "guess"),
    ],
)
def test_the_state_follows_the_numbers_and_names_the_attack(attack, state):
    found = verdict(summary_of(attack))
    assert found.state == state
    assert found.label == {"leaked": "leaked", "partly": "partly leaked", "guess": "no more than a guess"}[state]
    assert found.basis == "Against `exact` alone: nothing is said of other attacks."


def test_what_leaked_in_part_is_named_with_its_holder_and_a_guess():
    columns = [
        {"name": "age", "worker": 0, "r2": -0.2, "exact": NOTHING, "near": NOTHING},
        {"name": "region", "worker": 0, "exact": {"right": 0.52, "guess": 0.22, "gain": 0.3, "leaked": True}},
        {"name": "job", "worker": 1, "exact": JOB},
        {"name": "debt", "worker": 1, "exact": NOTHING, "near": JOB | {"right": 0.3, "gain": 0.1}},
    ]
    assert verdict(summary_of(ROWS | {"columns": columns})).sentence == (
        "The coordinator rebuilt 0 of 300 rows exactly from 75 rounds of gradients, and knows these better than a "
        "guess: job of worker 1 (64.0% right, guessing 20.0%), region of worker 0 (52.0% right, guessing 22.0%), debt "
        "of worker 1 (30.0% right to 5 % of its range, guessing 20.0%)."
    )


def test_an_order_that_was_taken_from_the_truth_is_in_the_headline():
    assert "The referee, not the attack, said which is which of 119 that no batch tells apart." in (
        verdict(summary_of(images(1.0, 90.0, ordered=119))).sentence
    )


def test_what_leaked_in_part_is_as_loud_as_what_leaked_whole():
    assert all(STYLES[state].startswith("bold") and " on " in STYLES[state] for state in ("leaked", "partly"))


@pytest.mark.parametrize(
    ("attack", "more", "label"),
    [
        ({"share_30db": None}, {}, "not scored"),
        ({"used": []}, {"ended": "worker 2 left"}, "not finished"),
        ({"used": [], "notes": ["The attack had too few rounds: it needs 5."]}, {}, "no result"),
        ({"used": [], "name": "none"}, {}, "no attack"),
    ],
)
def test_an_attack_without_a_result_shows_nothing(attack, more, label):
    found = verdict(summary_of(attack, **more))
    assert (found.state, found.label, found.basis) == ("open", label, "")
    if label in ("not finished", "no result"):
        why = more.get("ended") or "The attack had too few rounds: it needs 5"
        assert found.sentence == f"The attack `exact` came to no result: {why}. That says nothing about safety."
