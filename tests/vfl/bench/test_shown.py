"""`cafe bench shown`: what a layer's gradients can show at all."""

import json
from pathlib import Path

import torch

from vfl.bench.shown import Seen, bench_shown
from vfl.bench.shown import _count as count


def seen(batch: list[int], *v: list[float], later: list[list[float]] | None = None, room: float = 1.0) -> Seen:
    others = [torch.tensor(later, dtype=torch.float64)] if later else []
    return Seen(torch.tensor(batch), [torch.tensor(v, dtype=torch.float64)], [others], [room], 0.0)


def counted(rounds: list[Seen], samples: int) -> tuple[float, int, int]:
    found = count(rounds, samples)
    return found["share"], found["images"], found["all_images"]


def test_samples_with_one_v_hide_each_other_until_another_round_shows_one_of_them() -> None:
    first = seen([0, 1, 2], [1, 0], [1, 0], [0, 1])
    assert counted([first], 3) == (1 / 3, 1, 1)
    second = seen([1], [1, 0])
    assert counted([first, second], 3) == (2 / 3, 2, 3)


def test_a_sample_without_a_part_in_the_gradient_is_not_shown() -> None:
    found = count([seen([0, 1], [0, 0], [0, 1])], 2)
    assert (found["images"], found["nothing"], found["mixed"]) == (1, 1, 0)


def test_mixed_samples_are_told_from_those_that_send_nothing() -> None:
    parallel = seen([0, 1, 2], [1, 0], [1, 0], [0, 1], later=[[1, 0], [0, 1], [1, 1]])
    found = count([parallel], 3)
    assert (found["nothing"], found["mixed"], found["mixed_determined"], found["later"]) == (0, 2, 0, 0)
    roomy = seen([0, 1, 2], [1, 0], [1, 0], [0, 1], later=[[1, 0], [0, 1], [0, 1]], room=2.0)
    found = count([roomy], 3)  # one dimension with twice as many inputs as a slice has values: two may be in it
    assert (found["mixed_determined"], found["later"]) == (2, 1)


def test_the_short_bench_writes_its_rows(tmp_path: Path) -> None:
    bench_shown(tmp_path / "shown.json", short=True)
    rows = json.loads((tmp_path / "shown.json").read_text())["rows"]
    assert [row["training"] for row in rows] == ["frozen", "frozen", "Adam 1e-3", "Adam 1e-3"]
    assert rows[0]["images"] == rows[0]["samples"] == 24
