"""From a sweep's file to cells: the grid, single cells, what is skipped, and sentences for what is wrong."""

from pathlib import Path

import pytest
import yaml

from tests.vfl.sweep.fabricated import BASE, TRAINING, planned, write_sweep
from vfl.errors import UserError
from vfl.sweep.engines import default_jobs
from vfl.sweep.file import changed, read_sweep
from vfl.sweep.main import check_cells
from vfl.sweep.plan import load_plan

AXES = {"batch": {"small": {}, "large": {"federation.batch_size": 10}}, "seed": [0, 7]}


def test_a_grid_is_the_product_of_its_axes_in_their_order(tmp_path):
    plan = planned(tmp_path, axes=AXES)
    assert [cell.name for cell in plan.cells] == ["small, 0", "small, 7", "large, 0", "large, 7"]
    assert [(cell.config.federation.batch_size, cell.config.seed) for cell in plan.cells] == [
        (6, 0),
        (6, 7),
        (10, 0),
        (10, 7),
    ]
    assert plan.cells[1].values == {"batch": "small", "seed": "7"}
    assert plan.axes == {"batch": ("small", "large"), "seed": ("0", "7")}


def test_skip_leaves_out_what_matches_all_that_it_names(tmp_path):
    plan = planned(tmp_path, axes=AXES, skip=[{"batch": "small", "seed": [7]}, {"batch": "large", "seed": 0}])
    assert [cell.name for cell in plan.cells] == ["small, 0", "large, 7"]


def test_only_keeps_a_value_for_the_cells_that_it_belongs_to(tmp_path):
    plan = planned(tmp_path, axes=AXES, only=[{"batch": "large", "seed": 7}])
    assert [cell.name for cell in plan.cells] == ["small, 0", "small, 7", "large, 7"]
    several = [{"seed": 0, "batch": "small"}, {"seed": [0, 7], "batch": "large"}]
    assert [cell.name for cell in planned(tmp_path, axes=AXES, only=several).cells] == [
        "small, 0",
        "large, 0",
        "large, 7",
    ]


@pytest.mark.parametrize("path", sorted(Path("experiments").rglob("*.yaml")), ids=str)
def test_the_ready_sweeps_can_be_laid_out(path):
    assert load_plan(path).cells


def test_single_cells_follow_the_grid_or_stand_alone(tmp_path):
    plan = planned(tmp_path, axes={"seed": [0]}, cells={"training": TRAINING, "base": None})
    assert [cell.name for cell in plan.cells] == ["0", "training", "base"]
    assert plan.cells[1].values == {}
    assert plan.cells[1].config.training.lr == 0.1
    assert [cell.name for cell in planned(tmp_path, cells={"training": TRAINING}).cells] == ["training"]


def test_the_base_may_be_a_file_beside_the_sweep_and_set_changes_it(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))
    (tmp_path / "grid.yaml").write_text("base: base.yaml\naxes: {seed: [3]}\n")
    (cell,) = load_plan(tmp_path / "grid.yaml", ["seed=9", "data.samples=40"]).cells
    assert cell.config.data.options["samples"] == 40
    assert cell.config.seed == 3  # the axis has the last word


def test_cells_whose_names_look_alike_in_a_file_system_have_folders_of_their_own(tmp_path):
    plan = planned(tmp_path, axes={"size": {"a < b": {}, "a > b": {}, "../c": {}, "%": {}}})
    folders = [cell.folder for cell in plan.cells]
    assert len({folder.lower() for folder in folders}) == 4
    assert all("/" not in folder and folder.strip(".") for folder in folders)
    assert folders[2:] == ["c", "x"]


@pytest.mark.parametrize(
    ("changes", "key", "expected"),
    [
        ({"training.lr": 0.1}, "training", {"lr": 0.1, "momentum": 0.5}),
        ({"training": {"lr": 0.1}}, "training", {"lr": 0.1, "momentum": 0.5}),
        ({"defence.keep": 0.2}, "defence", {"name": "prune", "keep": 0.2}),
        ({"defence": {"name": "none"}}, "defence", {"name": "none"}),
        ({"defence": [{"name": "a"}, {"name": "b"}]}, "defence", [{"name": "a"}, {"name": "b"}]),
        ({"defence": {"workers": {1: {"name": "a"}}}}, "defence", {"workers": {1: {"name": "a"}}}),
        ({"model": {"hidden": [3]}}, "model", {"name": "mlp", "hidden": [3]}),
        ({"federation": {"rounds": 9}}, "federation", {"rounds": 9}),
        ({"federation.rounds": 9}, "federation", {"rounds": 9}),
        ({"attack.steps": 9}, "attack", {"steps": 9}),
    ],
)
def test_changes_set_a_leaf_merge_a_section_or_replace_a_plug_in(changes, key, expected):
    tree = {
        "training": {"lr": 0.0, "momentum": 0.5},
        "defence": {"name": "prune", "keep": 0.1},
        "model": {"name": "mlp", "hidden": [8, 8]},
        "federation": {"epochs": 2},
    }
    before = yaml.safe_dump(tree)
    assert changed(tree, changes)[key] == expected
    assert yaml.safe_dump(tree) == before


def sentence(path) -> str:
    with pytest.raises(UserError) as caught:
        check_cells(load_plan(path), path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"axis": {}}, "axis: there is no such key"),
        ({"axes": {}}, "axes: give at least one axis, or cells"),
        ({"axes": {"seed": []}}, "axes.seed: has no values"),
        ({"axes": {"size": {"a": 3}}}, "axes.size.a: input should be a valid dictionary (got 3)"),
        ({"axes": {"size": {True: {}}}}, "axes: the name True is not text: put it in quotes"),
        ({"axes": {"attack": [{"name": "exact"}]}}, "is not text"),
        ({"base": 3}, "base: expected the path of a config file, or a config"),
        ({"base": "nowhere.yaml"}, "nowhere.yaml cannot be read"),
        (
            {"axes": {"seed": [0]}, "skip": [{"seeds": 0}]},
            "skip.0: there is no axis called 'seeds', choose one of seed",
        ),
        ({"axes": {"seed": [0, 1]}, "only": [{"seed": 2}]}, "only.0.seed: there is no value called '2'"),
        ({"axes": {"seed": [0, 1]}, "skip": [{"seed": 2}]}, "skip.0.seed: there is no value called '2'"),
        ({"axes": {"seed": [0]}, "skip": [{"seed": 0}]}, "skip and only leave no cell"),
        ({"axes": {"seed": [0]}, "table": {"rows": "sed"}}, "table.rows: there is no axis called 'sed'"),
        ({"axes": {"seed": [0]}, "table": {"value": "psnr"}}, "table.value: there is no such number, choose one of"),
        ({"axes": {"seed": [0]}, "table": {"rows": "seed", "columns": "seed"}}, "cannot be both"),
        ({"axes": {"seed": [0]}, "table": {"along": "seed"}}, "table.along: 'seed' is not among table.rows"),
        (
            {"axes": {"day": {"first": {}}}, "table": {"rows": "day", "along": "day"}},
            "table.along: the value 'first' of day is no number",
        ),
        ({"axes": {"seed": [0]}, "cells": {"0": {}}}, "'0' is the name of a cell of the grid"),
        ({"cells": {"odd": {"seed.x": 1}}}, "seed.x: seed holds a value, not further keys (cell odd)"),
    ],
)
def test_bad_files_get_a_sentence(tmp_path, keys, words):
    assert words in sentence(write_sweep(tmp_path, **keys))


def test_all_problems_of_all_cells_are_listed_at_once(tmp_path):
    cells = {"a": {"federation.wrkers": 3}, "b": {"training.lr": -1}, "c": {}, "d": {"federation.wrkers": 2}}
    said = sentence(write_sweep(tmp_path, cells=cells))
    assert "federation.wrkers: there is no such key (cells a | d)" in said
    assert "training.lr: input should be greater than or equal to 0 (got -1) (cell b)" in said


def test_what_only_data_and_plug_ins_know_is_found_before_the_first_run_too(tmp_path):
    cells = {
        "a": {"attack": {"name": "magic"}},
        "b": {"federation.batch_size": 31},
        "c": {"attack": {"name": "least_squares"}, "training.lr": 0.1},
        "d": {"model.hiden": 3},
        "fine": {},
    }
    said = sentence(write_sweep(tmp_path, cells=cells))
    assert "there is no attack called 'magic'" in said
    assert "31 is more than the 30 samples (cell b)" in said
    assert "needs frozen parameters" in said
    assert "model.hiden: there is no such key" in said
    assert "fine" not in said


def test_what_is_wrong_everywhere_is_said_once(tmp_path):
    said = sentence(write_sweep(tmp_path, base=BASE | {"sed": 1}, axes={"seed": [1, 2, 3]}))
    assert said.endswith("sed: there is no such key (in every cell)")


def test_a_cell_at_a_time_unless_there_are_cores_for_more(tmp_path, monkeypatch):
    plan = planned(tmp_path, axes={"federation.workers": [2, 4]})
    for cores, jobs in ((2, 1), (9, 1), (10, 2), (64, 12)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert default_jobs(list(plan.cells)) == jobs


def test_the_ready_sweeps_are_sweeps():
    for path in Path("experiments").glob("*.yaml"):
        read_sweep(path)
        assert load_plan(path).cells
