"""`cafe bench all --short`: every hot path beside its floor, in a file that compares with another."""

import json

import pytest

from bench.all import bench_all
from bench.hot_paths import steps_one_two
from vfl.errors import UserError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("all") / "all.json"
    bench_all(out, short=True)
    return out


def test_every_hot_path_is_measured_beside_its_floor(written):
    tree = json.loads(written.read_text())
    kinds = ["worker round", "codec", "codec", "aggregation", "aggregation", "observing", "steps", "steps", "step III"]
    assert [one["path"].startswith(kind) for one, kind in zip(tree["paths"], kinds, strict=True)] == [True] * 9
    for one in tree["paths"]:
        assert one["seconds"] > 0
        assert one["floor_seconds"] > 0
        assert one["ratio"] > 0
    assert {"commit", "versions", "machine"} <= tree.keys()


def test_two_measurements_are_put_side_by_side(written, tmp_path, capsys):
    tree = json.loads(written.read_text())
    tree["commit"] = "another"
    for one in tree["paths"]:
        one["ratio"] *= 2
    tree["paths"] = tree["paths"][1:]
    (tmp_path / "new.json").write_text(json.dumps(tree))
    bench_all(None, short=True, compare=(written, tmp_path / "new.json"))
    shown = capsys.readouterr().out
    assert shown.count("2.00") >= 8
    assert "worker round" in shown  # which only one of them has
    assert "another" in shown


def test_what_is_no_measurement_is_refused_in_words(written, tmp_path):
    (tmp_path / "other.json").write_text('{"paths": [1]}')
    with pytest.raises(UserError, match=r"other.json: is no file that `cafe bench all --out` wrote"):
        bench_all(None, short=True, compare=(written, tmp_path / "other.json"))


def test_the_measured_path_solves_its_problem():
    solved = steps_one_two(64, 8).ours()
    assert bool(solved.h.isfinite().all())
