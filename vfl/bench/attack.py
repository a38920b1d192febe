"""`cafe bench attack`: seconds of each step of `exact` as batches and samples grow, beside the paper's algorithm.

One gradient (one epoch) and intersections (two epochs) see the same images with the same frozen parameters. Step III is
the same for both and does not depend on K, so it is run once for each N. The paper's algorithm is not run to its end:
some of its iterations are measured, and multiplied by the rounds that the paper gives it. Seconds are CPU time, that of
all cores added up: on a busy machine the clock also counts waiting.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from attacker.cafe import Cafe
from attacker.interface import Recovery, attacks
from vfl.bench.rigs import save, show_table
from vfl.datasets import Data, datasets
from vfl.local.one_process import observations
from vfl.models.layers import representation
from vfl.models.whole import first_model
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import assemble, partition
from vfl.referee import best_order, score_images
from vfl.registry import PluginSection

WORKERS = 4
SIZES: tuple[tuple[int, int], ...] = ((200, 10), (200, 20), (200, 80), (256, 128), (200, 40), (400, 40), (800, 40))
"""Samples and batch: K grows, then N."""
SHORT: tuple[tuple[int, int], ...] = ((8, 2), (8, 4))
TILES = 520
"""As many as the photographs have at most."""
NEAR = 1e-2
"""A slice is found if its h is known to within one per cent."""
PAPERS_ROUNDS = 8000
"""The paper's T for CIFAR-10 and MNIST (Table 5)."""
ITERATIONS = 4
COLUMNS = {
    "N": "{samples}",
    "K": "{batch}",
    "one gradient: I, II": "{one_gradient}",
    "slices found": "{one_gradient_found:.1%}",
    "step III": "{step_three}",
    "images >= 30 dB": "{images}",
    "intersections: I, II": "{subspaces}",
    "found": "{subspaces_found:.1%}",
    "CAFE: an iteration": "{iteration:.2f} s",
    f"{PAPERS_ROUNDS:,} of them": "{papers}",
}


@dataclass
class Stopwatch:
    """Adds up the CPU time of each step by the name under which it reports its progress."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.process_time)

    def __call__(self, step: str, done: int, total: int) -> None:  # noqa: ARG002
        """Take the time since the last call as spent on this step."""
        now = time.process_time()
        name = step.partition(",")[0]
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


def bench_attack(source: Path | None, out: Path | None, short: bool) -> None:
    """Measure on an .npz file of images, or on the bundled photographs."""
    name = "photos" if source is None else source.name
    most = TILES if source is None else SIZES[-1][0]
    sizes = SHORT if short else tuple((min(samples, most), batch) for samples, batch in SIZES)
    whole = sizes[-1][1]  # the K at which N grows, and step III is run too
    results = [_case(load(source, samples), batch, whole=batch == whole) for samples, batch in sizes]
    last = results[-1]
    note = (
        f"{name}, cafe_cnn, {WORKERS} workers, frozen, seed 0; CPU time. One gradient: one epoch; intersections: two. "
        f"{last['samples']} images from one epoch: {last['clock']:.0f} s by the clock."
    )
    table = show_table(results, COLUMNS, note)
    save(out, {"data": name, "results": results}, f"attack --data {name}" if source else "attack", table)


def _case(data: Data, batch: int, *, whole: bool) -> dict[str, Any]:
    """Measure all three on some images in batches of so many."""
    samples, began = len(data.x), time.monotonic()
    console_line(f"N = {samples}, K = {batch}")
    row: dict[str, Any] = {"samples": samples, "batch": batch, "step_three": "", "images": ""}
    for method, epochs in (("one_gradient", 1), ("subspaces", 2)):
        three = whole and method == "one_gradient"
        setting = setting_for(data, batch, "epochs", epochs * -(-samples // batch))
        section = PluginSection.model_validate({"name": "exact", "method": method, "step_three": three})
        recovery, seconds = _recovered(section, setting, data)
        last = seconds.pop("step III", 0.0)
        row |= {method: f"{sum(seconds.values()):.1f} s", f"{method}_found": _found(recovery, setting, data)}
        row[f"{method}_seconds"] = seconds | {"step III": last}
        if three:
            scores = _score(recovery, setting, data)
            row |= {"step_three": f"{last:.1f} s", "images": f"{scores['share_30db']:.1%}", "scores": scores}
            row["clock"] = time.monotonic() - began
    row["iteration"] = _iteration(data, batch)
    row["papers"] = f"{row['iteration'] * PAPERS_ROUNDS / 60:.0f} min"
    return row


def _recovered(section: PluginSection, setting: Setting, data: Data) -> tuple[Recovery, dict[str, float]]:
    """Return what an attack makes of the rounds, and the seconds of its steps; watching is one."""
    attack, watching = attacks.build(section).start(setting), 0.0
    for observation in observations(setting, data.x, data.y, TrainingConfig()):
        began = time.process_time()
        attack.observe(observation)
        watching += time.process_time() - began
    watch = Stopwatch()
    recovery = attack.recover(watch)
    watch("the rest", 1, 1)
    return recovery, {"watching": watching, **watch.seconds}


def _iteration(data: Data, batch: int) -> float:
    """Return the seconds of an iteration of the paper's algorithm: all three steps in one loop, Table 9's weights."""
    setting = setting_for(data, batch, "uniform", PAPERS_ROUNDS)
    all_at_once = {"switch_one": None, "switch_two": None}
    attack = Cafe(lr_one=5e-3, lr_two=8e-3, lr_three=2e-2, xi=90.0, **all_at_once).start(setting)
    seen = islice(observations(setting, data.x, data.y, TrainingConfig()), ITERATIONS + 1)
    spent = []
    for observation in seen:
        began = time.process_time()
        attack.observe(observation)
        spent.append(time.process_time() - began)
    return sum(spent[1:]) / ITERATIONS


def console_line(text: str) -> None:
    """Say where the benchmark is."""
    Console(stderr=True, highlight=False).print(text)


def load(source: Path | None, samples: int) -> Data:
    """Return so many images of a file, or of the bundled photographs."""
    own = {"name": "photos"} if source is None else {"name": "npz", "path": str(source), "test_samples": 0}
    return datasets.build(PluginSection.model_validate({**own, "samples": samples})).load()


def setting_for(data: Data, batch_size: int, schedule: str, rounds: int) -> Setting:
    """Return the paper's network on these images, frozen, seed 0."""
    model, boxes = PluginSection(name="cafe_cnn"), tuple(partition(data.sample_shape, WORKERS))
    return Setting(model, boxes, data.classes, len(data.x), batch_size, schedule, rounds, frozen=True, seed=0)


def nearest(some: Tensor, others: Tensor) -> Tensor:
    """Return how far each of some is from the nearest of the others, relative to its length."""
    if not len(some) or not len(others):
        return torch.full((len(some),), torch.inf)
    apart: Tensor = torch.cdist(some, others).min(dim=1).values / some.norm(dim=1).clamp_min(1e-300)
    return apart


def _found(recovery: Recovery, setting: Setting, data: Data) -> float:
    """Return the share of all slices whose h is among those recovered."""
    assert recovery.representations is not None
    assert recovery.layers is not None
    model, found = first_model(setting).eval(), []
    parts: Iterable[Any] = zip(model.bottoms, recovery.layers, setting.boxes, recovery.representations, strict=True)
    for bottom, layer, box, own in parts:
        with torch.no_grad():
            true = representation(bottom, layer, box.cut(data.x)).double()
        found.append(nearest(true, own[own.isfinite().all(dim=1)].double()) < NEAR)
    return float(torch.cat(found).double().mean())


def _score(recovery: Recovery, setting: Setting, data: Data) -> dict[str, Any]:
    """Return what `cafe run` would say of the recovered images."""
    assert recovery.slices is not None
    x = assemble(setting.boxes, list(recovery.slices)).nan_to_num(0.5)
    order = best_order(x, data.x, recovery.cell_of(setting.samples))
    return dict(score_images(x[order], data.x))
