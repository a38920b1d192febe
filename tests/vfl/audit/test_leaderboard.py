"""The leaderboard that is kept: what is on it, and that its command writes it anew from what is kept."""

import json
import shutil
from pathlib import Path

from vfl.audit.leaderboard import submit

KEPT = Path(__file__).parents[3] / "experiments" / "results"


def test_it_has_ten_attacks_ten_defences_and_four_data_sets_with_a_score_of_each_kind():
    lines = json.loads((KEPT / "leaderboard.json").read_text(encoding="utf-8"))["lines"]
    assert len({line["attack"] for line in lines}) >= 10
    assert len({line["defence"] for line in lines} - {"none"}) >= 10
    assert len({line["data"] for line in lines}) >= 4
    assert all(0 <= line["known"] <= 1 for line in lines)
    assert {line["data"] for line in lines if line["accuracy"] is not None} >= {"adult", "breast_cancer"}


def test_its_command_writes_the_same_table_again(tmp_path):
    (tmp_path / "tables").mkdir()
    shutil.copy(KEPT / "leaderboard.json", tmp_path)
    assert submit([], tmp_path) == 0
    for name in ("leaderboard.json", "tables/leaderboard.json"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (KEPT / name).read_text(encoding="utf-8")
