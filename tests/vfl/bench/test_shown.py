"""`cafe bench shown`: what a layer's gradients can show at all."""

import json
from pathlib import Path

import torch

from vfl.bench.shown import Seen, bench_shown
from vfl.bench.shown import _count as count


def seen(batch: list[int], *v: list[float]) -> Seen:
    return Seen(torch.tensor(batch), [torch.tensor(v, dtype=torch.float64)], 0.0)


def test_samples_with_one_v_hide_each_other_until_another_round_shows_one_of_them() -> None:
    first = seen([0, 1, 2], [1, 0], [1, 0], [0, 1])
    assert count([first], 3) == {"share": 1 / 3, "images": 1, "all_images": 1}
    second = seen([1], [1, 0])
    assert count([first, second], 3) == {"share": 2 / 3, "images": 2, "all_images": 3}


def test_a_sample_without_a_part_in_the_gradient_is_not_shown() -> None:
    assert count([seen([0, 1], [0, 0], [0, 1])], 2)["images"] == 1


def test_the_short_bench_writes_its_rows(tmp_path: Path) -> None:
    bench_shown(tmp_path / "shown.json", short=True)
    rows = json.loads((tmp_path / "shown.json").read_text())["rows"]
    assert [row["training"] for row in rows] == ["frozen", "frozen", "Adam 1e-3", "Adam 1e-3"]
    assert rows[0]["images"] == rows[0]["samples"] == 24
