"""`cafe bench attack`: what `exact` costs as samples grow, where the time goes, and the paper's algorithm beside it."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from attacker.interface import attacks
from vfl.bench.rigs.beside_paper import beside_paper, show_race
from vfl.bench.rigs.trial import score, trial_setting
from vfl.datasets import Data, datasets
from vfl.local.one_process import observations
from vfl.registry import PluginSection
from vfl.training import TrainingConfig

BATCH_SIZE = 40


@dataclass
class Stopwatch:
    """Adds up the time of each step by the name under which it reports its progress."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.monotonic)

    def __call__(self, step: str, done: int, total: int) -> None:  # noqa: ARG002
        """Take the time since the last call as spent on this step."""
        now = time.monotonic()
        name = step.partition(",")[0]
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


def bench_attack(source: Path | None, epochs: int, out: Path | None, short: bool) -> None:
    """Measure `exact` on three sizes of a data set: an .npz file, or the bundled photographs."""
    name = "photos" if source is None else source.name
    sizes = (40, 80) if short else (130, 260, 520) if source is None else (200, 400, 800)
    results = [_measure(_load(source, size), epochs, console_line) for size in sizes]
    _print(name, epochs, results)
    few, batch_size, rounds = (16, 4, 24) if short else (80, 8, 1200)
    console_line(f"{few} samples: exact beside the paper's algorithm, {rounds} rounds")
    race = beside_paper(_load(source, few), batch_size, rounds)
    show_race(race, few, batch_size)
    if out is not None:
        numbers = {"data": name, "epochs": epochs, "results": results, "beside_the_paper": race}
        out.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


def console_line(text: str) -> None:
    """Say where the benchmark is."""
    Console(stderr=True, highlight=False).print(text)


def _load(source: Path | None, samples: int) -> Data:
    section = (
        PluginSection(name="photos", samples=samples)
        if source is None
        else PluginSection.model_validate({"name": "npz", "path": str(source), "samples": samples, "test_samples": 0})
    )
    return datasets.build(section).load()


def _measure(data: Data, epochs: int, say: Callable[[str], None]) -> dict[str, Any]:
    samples = len(data.x)
    batch_size = min(BATCH_SIZE, samples // 4)
    setting = trial_setting(data, batch_size, "epochs", epochs * -(-samples // batch_size))
    attack = attacks.build(PluginSection(name="exact")).start(setting)
    observing = 0.0
    for observation in observations(setting, data.x, data.y, TrainingConfig()):
        began = time.monotonic()
        attack.observe(observation)
        observing += time.monotonic() - began
    say(f"{samples} samples: {setting.rounds} rounds observed, recovering")
    watch = Stopwatch()
    scores = score(attack.recover(watch), setting, data)
    assert scores is not None
    seconds = {"observing": observing, **watch.seconds}
    return {"samples": samples, "rounds": setting.rounds, "seconds": seconds, **scores}


def _print(name: str, epochs: int, results: list[dict[str, Any]]) -> None:
    table = Table(
        f"exact on {name}, {epochs} epochs",
        "rounds",
        "steps I, II",
        "step III",
        "s a sample",
        "PSNR mean",
        "worst",
        "30 dB",
    )
    for result in results:
        seconds = result["seconds"]
        three = seconds.get("step III", 0.0)
        table.add_row(
            f"{result['samples']} samples",
            str(result["rounds"]),
            f"{sum(seconds.values()) - three:.1f} s",
            f"{three:.1f} s",
            f"{sum(seconds.values()) / result['samples']:.3f}",
            f"{result['psnr_mean']:.1f}",
            f"{result['psnr_min']:.1f}",
            f"{result['share_30db']:.1%}",
        )
    Console(highlight=False).print(table)
    first, last = results[0], results[-1]
    growth = sum(last["seconds"].values()) / sum(first["seconds"].values())
    times = last["samples"] / first["samples"]
    Console(highlight=False).print(f"{times:g} times the samples take {growth:.2f} times the time.")
