"""`cafe bench side`: every attack has a run beside it and one without."""

import json

import pytest

from attacker.start import start_attack
from vfl.bench.federation import noise
from vfl.bench.side import RIVALS, SHORT, WORKERS, bench_side
from vfl.observation import Setting
from vfl.partition import partition
from vfl.registry import PluginSection


@pytest.mark.parametrize("rival", RIVALS, ids=[rival.name for rival in RIVALS])
def test_every_attack_starts_with_the_rounds_of_the_short_one(rival):
    data, (rounds, _) = noise(), SHORT
    boxes = tuple(partition(data.sample_shape, WORKERS))
    frozen = rival.lr == 0
    model = PluginSection(name="cafe_cnn")
    start_attack(rival.attack, Setting(model, boxes, data.classes, len(data.x), 40, "epochs", rounds, frozen, 0))


@pytest.mark.slow
def test_all_attacks_are_measured_with_and_without(tmp_path):
    bench_side(tmp_path / "side.json", short=True)
    results = json.loads((tmp_path / "side.json").read_text())["cases"]
    assert [result["case"] for result in results] == [rival.name for rival in RIVALS]
    for result in results:
        assert result["ratio"] == result["seconds_beside"] / result["seconds_alone"]  # of the one turn that there is
        assert all(queue["longest"] <= SHORT[0] for queue in result["queues"])
