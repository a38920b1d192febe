"""A sweep in several sizes: what each changes, and sentences for what is wrong."""

import pytest

from tests.vfl.sweep.fabricated import planned, write_sweep
from vfl.errors import UserError
from vfl.sweep.plan import load_plan

AXES = {"batch": {"six": {}, "ten": {"federation.batch_size": 10}}, "seed": [0, 7]}
SIZES = {
    "paper": {},
    "small": {
        "note": "Less of everything.",
        "base": {"data.samples": 20},
        "axes": {"seed": [3]},
        "adjust": [{"where": {"batch": "ten"}, "change": {"federation.batch_size": 5}}],
    },
}


def planned_in(size, tmp_path, **keys):
    write_sweep(tmp_path, axes=AXES, **{"sizes": SIZES, **keys})
    return load_plan(tmp_path / "grid.yaml", size=size)


def test_a_size_changes_the_base_takes_other_axes_and_adjusts_single_values(tmp_path):
    plan = planned_in("small", tmp_path)
    assert [cell.name for cell in plan.cells] == ["six, 3", "ten, 3"]
    assert [cell.config.data.model_dump()["samples"] for cell in plan.cells] == [20, 20]
    assert [cell.config.federation.batch_size for cell in plan.cells] == [6, 5]
    assert (plan.name, plan.note) == ("grid-small", "Less of everything.")


def test_small_is_taken_if_no_size_is_asked_for(tmp_path):
    assert planned_in(None, tmp_path).name == "grid-small"
    assert planned_in(None, tmp_path, sizes={"large": {}, "huge": {}}).name == "grid-large"


def test_a_size_that_changes_nothing_is_the_sweep_itself(tmp_path):
    assert [cell.config for cell in planned_in("paper", tmp_path).cells] == [
        cell.config for cell in planned(tmp_path, axes=AXES).cells
    ]


def test_adjustments_come_after_the_axes_in_order_and_need_all_that_they_name(tmp_path):
    adjust = [
        {"where": {"seed": [0, 7]}, "change": {"federation.batch_size": 4}},
        {"where": {"batch": "ten", "seed": 7}, "change": {"federation.batch_size": 3}},
    ]
    plan = planned(tmp_path, axes=AXES, adjust=adjust)
    assert [cell.config.federation.batch_size for cell in plan.cells] == [4, 4, 4, 3]


@pytest.mark.parametrize(
    ("keys", "size", "sentence"),
    [
        ({}, "huge", "--size huge: .* has the sizes paper, small"),
        ({"sizes": {}}, "small", "--size small: .* has no sizes"),
        ({"sizes": {"s": {"skip": [{"colour": "red"}]}}}, "s", r"sizes\.s\.skip\.0: there is no axis called 'colour'"),
        (
            {"sizes": {"s": {"adjust": [{"where": {"batch": "eleven"}, "change": {}}]}}},
            "s",
            r"sizes\.s\.adjust\.0\.where\.batch: there is no value called 'eleven', choose one of six, ten",
        ),
        (
            {"adjust": [{"where": {"batch": "two"}, "change": {}}]},
            "paper",
            r"adjust\.0\.where\.batch: there is no value",
        ),
    ],
)
def test_a_wrong_size_is_a_sentence(tmp_path, keys, size, sentence):
    with pytest.raises(UserError, match=sentence):
        planned_in(size, tmp_path, **keys)
