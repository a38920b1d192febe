"""`cafe bench attack --short` on the bundled photographs: both ways find every slice, and the images come back."""

import json
from pathlib import Path

from vfl.bench.attack import bench_attack


def test_one_gradient_and_intersections_find_the_same_slices_beside_an_iteration_of_the_papers(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    bench_attack(None, out, short=True)
    kept = json.loads(out.read_text())
    assert [(one["samples"], one["batch"]) for one in kept["results"]] == [(8, 2), (8, 4)]
    for one in kept["results"]:
        assert one["one_gradient_found"] > 0.9
        assert one["subspaces_found"] > 0.9
        assert one["iteration"] > 0
    assert kept["results"][-1]["scores"]["share_30db"] > 0.9
    assert kept["command"] == "`cafe bench attack`"
