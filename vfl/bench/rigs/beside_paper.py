"""`exact` beside the paper's own algorithm: rounds and seconds until the images reach the paper's 30 dB."""

import time
from typing import Any

from rich.console import Console
from rich.table import Table

from attacker.interface import attacks, silent
from vfl.bench.rigs.trial import score, trial_setting
from vfl.datasets import Data
from vfl.local.one_process import observations
from vfl.observation import Setting
from vfl.registry import PluginSection
from vfl.training import TrainingConfig

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
    epochs = 2 * -(-len(data.x) // batch_size)
    return [
        _race("exact, 2 epochs", EXACT, data, trial_setting(data, batch_size, "epochs", epochs), looks=1),
        _race(f"cafe, {rounds} rounds", cafe, data, trial_setting(data, batch_size, "uniform", rounds), looks=24),
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
            scores = score(recovery, setting, data)
            psnr = float("nan") if scores is None else scores["psnr_mean"]
            if psnr >= TARGET and reached is None:
                reached = {"rounds": observation.round, "seconds": seconds}
        else:
            seconds += time.monotonic() - began
    return {"attack": name, "reached": reached, "rounds": rounds, "seconds": seconds, "psnr_mean": psnr}


def show_race(results: list[dict[str, Any]], samples: int, batch_size: int) -> None:
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
