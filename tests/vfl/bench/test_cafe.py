"""`cafe bench cafe --short`: every step beside its floor, and the floor has the passes that the step makes."""

import json
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vfl.bench.cafe import SMALL, bench_cafe, paths


class Convolutions(TorchDispatchMode):
    """Counts the passes of convolutions, whichever routine makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("convolution", "_slow_conv2d_forward"):
            self.found["forward"] += 1
        if name == "convolution_backward":
            self.found["backward"] += sum(args[-1][:2])
        if name == "_slow_conv2d_backward":
            self.found["backward"] += sum(args[-1][:2])
        return func(*args, **(kwargs or {}))


def test_every_step_is_measured_beside_its_floor(tmp_path, capsys):
    bench_cafe(tmp_path / "cafe.json", short=True)
    rows = json.loads((tmp_path / "cafe.json").read_text())["paths"]
    assert [row["path"].rpartition("small, ")[2] for row in rows] == [
        "step I", "step II", "step III", "step III, alpha 0", "all steps",
    ]  # fmt: skip
    assert all(row["ours"] > 0 and row["floor"] > 0 and row["ratio"] > 0 for row in rows)
    assert "step III" in capsys.readouterr().out


def test_the_floor_makes_as_many_passes_of_convolutions_as_step_three_does():
    steps = {path.name.rpartition("small, ")[2]: path for path in paths(SMALL)}
    for name in ("step III", "step III, alpha 0"):
        counted = []
        for work in (steps[name].ours, steps[name].floor):
            with Convolutions() as passes, torch.no_grad() if work is steps[name].floor else torch.enable_grad():
                work()
            counted.append(dict(passes.found))
        assert counted[0] == counted[1], name
