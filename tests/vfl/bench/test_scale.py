"""`cafe bench scale --short`: real runs are metered, and the model that is written is one that `cafe plan` reads."""

from pathlib import Path

from tests.support import small_config
from vfl.bench.scale import SHORT, bench_scale
from vfl.plan.machine import Machine
from vfl.plan.main import make_plan
from vfl.plan.terms import load_fitted


def test_points_are_measured_and_fitted(tmp_path, capsys):
    out = tmp_path / "scale.json"
    bench_scale(out, short=True)
    fitted = load_fitted(out)
    assert [one["config"] for one in fitted.points] == list(SHORT)
    for one in fitted.points:
        attacked = one["config"]["attack"]["name"] != "none"
        assert one["seconds"]["federation"] > 0
        assert ("steps I and II" in one["seconds"]) == attacked
        assert min(one["memory"].values()) > 50e6
    shown = capsys.readouterr().out
    assert "measured / predicted" in shown
    assert "0 B off" in shown
    assert not out.with_suffix(".points").exists()
    plan = make_plan(small_config(), Path(), Machine(1, 1 << 50, 1 << 50), fitted)
    assert plan.seconds["federation"] > 0
