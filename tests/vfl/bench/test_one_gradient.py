"""`cafe bench one_gradient` on the bundled photographs: what a gradient tells, and that a breaker sees it coming."""

import json
from pathlib import Path

from vfl.bench.one_gradient import bench_one_gradient


def test_a_gradient_tells_all_samples_with_little_noise_nearly_all_and_a_breaker_uploads_none(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    bench_one_gradient(None, out, short=True)
    kept = json.loads(out.read_text())
    found = {one["defence"]: one["found"]["of_10"] for one in kept["results"]}
    assert found["none"] == "20 of 20"
    assert int(found["noise, scale 0.001"].split()[0]) >= 10
    assert "+" not in found["noise, scale 0.001"]
    assert found["breaker"] == "withheld"
    assert kept["command"] == "`cafe bench one_gradient`"
