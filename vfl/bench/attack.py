"""`cafe bench attack`: what `exact` costs as samples grow, where the time goes, and CAFE, tuned, beside it."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from attacker.interface import Recovery, attacks, silent
from vfl.bench.rigs import save, show_table
from vfl.datasets import Data, datasets
from vfl.local.one_process import observations
from vfl.observation import Setting
from vfl.optimisers.training import TrainingConfig
from vfl.partition import assemble, partition
from vfl.referee import best_order, score_images
from vfl.registry import PluginSection

WORKERS, BATCH_SIZE = 4, 40

TARGET = 30.0
"""dB: the paper's "PSNR values are always above 30 at the end of each CAFE attacking process"."""

EXACT = PluginSection(name="exact")
COLUMNS = {
    "rounds": "{rounds}",
    "steps I, II": "{before:.1f} s",
    "step III": "{step_three:.1f} s",
    "s a sample": "{each:.3f}",
    "PSNR mean": "{psnr_mean:.1f}",
    "worst": "{psnr_min:.1f}",
    "30 dB": "{share_30db:.1%}",
}


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
    results = [_measure(load(source, size), epochs) for size in sizes]
    totals = [sum(one["seconds"].values()) for one in results]
    rows = []
    for one, total in zip(results, totals, strict=True):
        three = one["seconds"].get("step III", 0.0)
        rows.append({**one, "before": total - three, "step_three": three, "each": total / one["samples"]})
    times = results[-1]["samples"] / results[0]["samples"]
    note = f"{times:g} times the samples take {totals[-1] / totals[0]:.2f} times the time."
    table = show_table(rows, {f"exact on {name}, {epochs} epochs": "{samples} samples"} | COLUMNS, note)
    few, batch_size, rounds = (16, 4, 24) if short else (80, 8, 1200)
    console_line(f"{few} samples: exact beside CAFE, tuned (docs/cafe.md), {rounds} rounds")
    race = _beside_paper(load(source, few), batch_size, rounds)
    _show_race(race, few, batch_size)
    numbers = {"data": name, "epochs": epochs, "results": results, "beside_the_paper": race}
    save(out, numbers, f"attack --data {name}" if source else "attack", table)


def console_line(text: str) -> None:
    """Say where the benchmark is."""
    Console(stderr=True, highlight=False).print(text)


def load(source: Path | None, samples: int) -> Data:
    """Return so many images of a file, or of the bundled photographs."""
    own = {"name": "photos"} if source is None else {"name": "npz", "path": str(source), "test_samples": 0}
    return datasets.build(PluginSection.model_validate({**own, "samples": samples})).load()


def _measure(data: Data, epochs: int) -> dict[str, Any]:
    samples = len(data.x)
    batch_size = min(BATCH_SIZE, samples // 4)
    setting = setting_for(data, batch_size, "epochs", epochs * -(-samples // batch_size))
    attack = attacks.build(EXACT).start(setting)
    observing = 0.0
    for observation in observations(setting, data.x, data.y, TrainingConfig()):
        began = time.monotonic()
        attack.observe(observation)
        observing += time.monotonic() - began
    console_line(f"{samples} samples: {setting.rounds} rounds observed, recovering")
    watch = Stopwatch()
    scores = _score(attack.recover(watch), setting, data)
    assert scores is not None
    seconds = {"observing": observing, **watch.seconds}
    return {"samples": samples, "rounds": setting.rounds, "seconds": seconds, **scores}


def _cafe_section(colour: bool) -> PluginSection:
    """Return CAFE for images, tuned beyond the paper (docs/cafe.md), without second derivatives, Table 9's xi."""
    scaled = {"optimiser_one": "scaled_sgd", "optimiser_two": "scaled_sgd", "lr_one": 1.0, "lr_two": 1.0}
    three = {"lr_three": 0.05 if colour else 0.1, "final_three": 0.02, "alpha": 0.0, "xi": 90.0 if colour else 25.0}
    return PluginSection.model_validate({"name": "cafe", **scaled, **three})


def _beside_paper(data: Data, batch_size: int, rounds: int) -> list[dict[str, Any]]:
    """Return, for both attacks, the rounds and the attack's own seconds it took, and the quality at the end."""
    cafe = _cafe_section(colour=data.sample_shape[0] > 1)
    epochs = 2 * -(-len(data.x) // batch_size)
    return [
        _race("exact, 2 epochs", EXACT, data, setting_for(data, batch_size, "epochs", epochs), looks=1),
        _race(f"cafe, {rounds} rounds", cafe, data, setting_for(data, batch_size, "uniform", rounds), looks=24),
    ]


def _race(name: str, section: PluginSection, data: Data, setting: Setting, *, looks: int) -> dict[str, Any]:
    """Let an attack see all rounds, and ask it `looks` times on the way what it has recovered."""
    rounds = setting.rounds
    attack = attacks.build(section).start(setting)
    every = max(1, rounds // looks)
    seconds, reached, psnr = 0.0, None, float("nan")
    for observation in observations(setting, data.x, data.y, TrainingConfig()):
        began = time.monotonic()
        attack.observe(observation)
        if observation.round % every == 0 or observation.round == rounds:
            recovery = attack.recover(silent)
            seconds += time.monotonic() - began
            scores = _score(recovery, setting, data)
            psnr = float("nan") if scores is None else scores["psnr_mean"]
            if psnr >= TARGET and reached is None:
                reached = {"rounds": observation.round, "seconds": seconds}
        else:
            seconds += time.monotonic() - began
    return {"attack": name, "reached": reached, "rounds": rounds, "seconds": seconds, "psnr_mean": psnr}


def _show_race(results: list[dict[str, Any]], samples: int, batch_size: int) -> None:
    """Print the comparison."""
    table = Table(f"{samples} samples, K = {batch_size}", f"{TARGET:g} dB after", "all rounds", "PSNR mean at the end")
    for result in results:
        reached = result["reached"]
        table.add_row(
            result["attack"],
            "not reached" if reached is None else f"{reached['rounds']} rounds, {reached['seconds']:.1f} s",
            f"{result['seconds']:.1f} s",
            f"{result['psnr_mean']:.1f}",
        )
    console = Console(highlight=False)
    console.print(table)
    if all(result["reached"] for result in results):
        ours, papers = (result["reached"] for result in results)
        console.print(
            f"CAFE, tuned, takes {papers['rounds'] / ours['rounds']:.0f} times the rounds and "
            f"{papers['seconds'] / ours['seconds']:.1f} times the attack's own time."
        )


def setting_for(data: Data, batch_size: int, schedule: str, rounds: int) -> Setting:
    """Return the paper's network on these images, frozen, seed 0."""
    model, boxes = PluginSection(name="cafe_cnn"), tuple(partition(data.sample_shape, WORKERS))
    return Setting(model, boxes, data.classes, len(data.x), batch_size, schedule, rounds, frozen=True, seed=0)


def _score(recovery: Recovery, setting: Setting, data: Data) -> dict[str, Any] | None:
    """Return what `cafe run` would say of the recovered images and labels; None where there are no images yet."""
    if recovery.slices is None:
        return None
    x = assemble(setting.boxes, list(recovery.slices)).nan_to_num(0.5)
    order = best_order(x, data.x, recovery.cell_of(setting.samples))
    labels = None if recovery.labels is None else float((recovery.labels[order] == data.y).float().mean())
    return {"label_accuracy": labels, **score_images(x[order], data.x)}
