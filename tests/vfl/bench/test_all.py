"""`cafe bench all --short`: every hot path beside its floor, in a file that compares with another."""

import json

import pytest

from vfl.bench.all import bench_all
from vfl.bench.rigs.hot_paths import steps_one_two
from vfl.errors import UserError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("all") / "all.json"
    bench_all(out, short=True)
    return out


def test_every_hot_path_is_measured_beside_its_floor(written):
    tree = json.loads(written.read_text())
    kinds = ["worker round", "codec", "codec", *["aggregation"] * 3, "observing", "steps", "steps", "step III"]
    assert [one["path"].startswith(kind) for one, kind in zip(tree["paths"], kinds, strict=True)] == [True] * 10
    for one in tree["paths"]:
        assert one["seconds"] > 0
        assert one["floor_seconds"] > 0
        assert one["ratio"] > 0
    assert {"commit", "versions", "machine"} <= tree.keys()


def test_two_measurements_are_put_side_by_side(written, tmp_path, capsys):
    tree = json.loads(written.read_text())
    tree |= {
        "commit": "0123456789ab-dirty",
        "machine": {"processor": "abacus", "cores": 7},
        "versions": {"torch": "9.9"},
    }
    for one in tree["paths"]:
        one["ratio"] *= 2
    tree["paths"] = tree["paths"][1:]
    (tmp_path / "new.json").write_text(json.dumps(tree))
    bench_all(None, short=True, compare=(written, tmp_path / "new.json"))
    shown = capsys.readouterr().out
    assert shown.count("2.00") >= 8
    assert "worker round" in shown  # which only one of them has
    assert "0123456789ab-dirty: processor abacus, cores 7, torch 9.9" in shown


def small(**changes):
    """A measurement as a file has it."""
    path = {"path": "a path", "ratio": 2.0, "seconds": 0.1}
    return {"commit": "abc", "versions": {}, "machine": {}, "short": False, "paths": [path | changes]}


@pytest.mark.parametrize("ratio", ["2.0", None, True, 0.0, float("nan"), [2.0]])
def test_a_ratio_that_is_no_number_is_refused_in_words(tmp_path, ratio):
    (tmp_path / "old.json").write_text(json.dumps(small()))
    (tmp_path / "new.json").write_text(json.dumps(small(ratio=ratio)))
    with pytest.raises(UserError, match=r"new\.json: is no file .*the ratio or the time of a path is no number"):
        bench_all(None, short=False, compare=(tmp_path / "old.json", tmp_path / "new.json"))


def test_a_short_measurement_is_not_compared_with_a_full_one(tmp_path):
    (tmp_path / "old.json").write_text(json.dumps(small()))
    (tmp_path / "new.json").write_text(json.dumps(small() | {"short": True}))
    with pytest.raises(UserError, match=r"old\.json is a full one and .*new\.json is a short one"):
        bench_all(None, short=False, compare=(tmp_path / "old.json", tmp_path / "new.json"))


def test_what_is_no_measurement_is_refused_in_words(written, tmp_path):
    (tmp_path / "other.json").write_text('{"paths": [1]}')
    with pytest.raises(UserError, match=r"other.json: is no file that `cafe bench all --out` wrote"):
        bench_all(None, short=True, compare=(written, tmp_path / "other.json"))


def test_the_measured_path_solves_its_problem():
    solved = steps_one_two(64, 8).ours()
    assert bool(solved.h.isfinite().all())
