"""`exact` beside the paper's own algorithm: rounds and seconds until the images are as good as the paper calls good."""

import time
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from attacker.interface import Attack, attacks, silent
from bench.one_process import observations
from vfl.config import TrainingConfig
from vfl.datasets import Data
from vfl.observation import Setting
from vfl.partition import assemble, partition
from vfl.referee import best_order, score_images
from vfl.registry import PluginSection

TARGET = 30.0
"""dB: the paper's "PSNR values are always above 30 at the end of each CAFE attacking process"."""

EXACT = PluginSection(name="exact")


def cafe_section(colour: bool) -> PluginSection:
    """Return the paper's algorithm for images: rates scaled to the batch, no second derivatives, Table 9's xi."""
    return PluginSection.model_validate(
        {
            "name": "cafe",
            "optimiser_one": "scaled_sgd",
            "optimiser_two": "scaled_sgd",
            "lr_one": 1.0,
            "lr_two": 1.0,
            "lr_three": 0.05 if colour else 0.1,
            "final_three": 0.02,
            "alpha": 0.0,
            "xi": 90.0 if colour else 25.0,
        }
    )


def beside_paper(data: Data, batch_size: int, rounds: int) -> list[dict[str, Any]]:
    """Return, for both attacks, the rounds and the attack's own seconds it took, and the quality at the end."""
    cafe = cafe_section(colour=data.sample_shape[0] > 1)
    return [
        _race("exact, 2 epochs", EXACT, "epochs", data, batch_size, 2 * -(-len(data.x) // batch_size), looks=1),
        _race(f"cafe, {rounds} rounds", cafe, "uniform", data, batch_size, rounds, looks=24),
    ]


def _race(
    name: str, section: PluginSection, schedule: str, data: Data, batch_size: int, rounds: int, looks: int
) -> dict[str, Any]:
    setting = Setting(
        model=PluginSection(name="cafe_cnn"),
        boxes=tuple(partition(data.sample_shape, 4)),
        classes=data.classes,
        samples=len(data.x),
        batch_size=batch_size,
        schedule=schedule,
        rounds=rounds,
        frozen=True,
        seed=0,
    )
    attack = attacks.build(section).start(setting)
    every = max(1, rounds // looks)
    seconds, reached, psnr = 0.0, None, float("nan")
    for observation in observations(setting, data.x, data.y, TrainingConfig()):
        began = time.monotonic()
        attack.observe(observation)
        if observation.round % every == 0 or observation.round == rounds:
            x = _estimate(attack, setting, data)
            seconds += time.monotonic() - began
            psnr = float("nan") if x is None else score_images(x, data.x)["psnr_mean"]
            if psnr >= TARGET and reached is None:
                reached = {"rounds": observation.round, "seconds": seconds}
        else:
            seconds += time.monotonic() - began
    return {"attack": name, "reached": reached, "rounds": rounds, "seconds": seconds, "psnr_mean": psnr}


def _estimate(attack: Attack, setting: Setting, data: Data) -> Tensor | None:
    recovery = attack.recover(silent)
    if recovery.slices is None:
        return None
    x = assemble(setting.boxes, list(recovery.slices)).nan_to_num(0.5)
    return x[best_order(x, data.x, recovery.cell_of(setting.samples))]


def show(results: list[dict[str, Any]], samples: int, batch_size: int) -> None:
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
            f"The paper's algorithm takes {papers['rounds'] / ours['rounds']:.0f} times the rounds and "
            f"{papers['seconds'] / ours['seconds']:.1f} times the attack's own time."
        )
