"""`cafe bench load --short`: a small federation for many rounds, a coordinator and an attack that cannot keep up."""

import json

import pytest

from vfl.bench.load import bench_load

MB = 1 << 20


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("load") / "load.json"
    bench_load(out, short=True)
    return json.loads(out.read_text())


def test_memory_and_descriptors_stay_what_they_were(result):
    (steady,) = result["steady"]
    assert steady["rounds"] == 200
    assert [line[0] for line in result["table"][1:]] == [f"4 workers: {party}" for party in steady["parties"]]
    assert steady["parties"].keys() == {"coordinator", "label holder", "largest other worker"}
    for party, measured in steady["parties"].items():
        (early, late), (opened, still) = measured["memory"], measured["descriptors"]
        assert late - early < 8 * MB, party
        assert opened > 3, party
        assert still - opened <= 2, party  # a call or a file under way


def test_uploads_wait_for_a_coordinator_that_is_held_back(result):
    held = result["held"]
    free_memory, held_memory = held["memory"]
    assert held["stops"] > 0
    assert held["upload"] > 4 * MB
    assert held_memory - free_memory < 6 * held["upload"]  # two rounds are under way, each in and out of the wire


def test_rounds_wait_on_disk_for_an_attack_that_is_slow_and_none_is_left_out(result):
    behind = result["behind"]
    assert behind["seen"] == behind["rounds"]
    assert 0 < behind["spilled"] < behind["rounds"]
    assert behind["memory_growth"] < 8 * MB
