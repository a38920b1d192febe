"""`cafe bench side`: what an attack beside the training costs the rounds, as seconds a round over those without one."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacker.exact import Exact
from attacker.interface import Attack, Progress, Recovery, Setting
from vfl.bench.federation import NO_ATTACK, FederationCase, federate, noise
from vfl.bench.rigs import save, show_table
from vfl.datasets import Data
from vfl.folder.schema import as_json
from vfl.registry import PluginSection

WORKERS = 4
FULL, SHORT = (60, 5), (30, 1)
"""Rounds, and how often; three epochs are the fewest with which `exact` follows parameters."""
COLUMNS = {
    "CIFAR-10 shapes, K = 40": "{case}",
    "no attack": "{alone:.0f} ms",
    "attack beside": "{beside:.0f} ms",
    "ratio": "{ratio:.3f}",
    "of the fastest": "{ratio_lowest:.3f}",
    "rounds behind": "{longest}",
}


@dataclass(frozen=True)
class Rival:
    """An attack, and the training that it goes on beside."""

    name: str
    lr: float
    attack: PluginSection


class Collecting(Exact):
    """`exact` as it is during the rounds; afterwards, when no round is left to slow down, it recovers nothing."""

    def start(self, setting: Setting) -> Attack:
        """Begin as `exact` does."""
        return _Collecting(super().start(setting))


class _Collecting:
    def __init__(self, attack: Attack) -> None:
        self.observe = attack.observe

    def recover(self, _progress: Progress) -> Recovery:
        return Recovery(used=())


COLLECTING = PluginSection(name="vfl.bench.side:Collecting")
CAFE = PluginSection.model_validate({"name": "cafe", "switch_one": None, "switch_two": None})
RIVALS = (
    Rival("frozen, exact", 0.0, COLLECTING),
    Rival("parameters change, exact", 0.01, COLLECTING),
    Rival("parameters change, cafe: all three steps every round", 0.01, CAFE),
)


def bench_side(out: Path | None, short: bool) -> None:
    """Measure and print; runs with and without the attack take turns, so that other load on the machine hits both."""
    rounds, repeats = SHORT if short else FULL
    data = noise()
    results = [_measure(rival, data, rounds, repeats) for rival in RIVALS]
    note = f"A round of {WORKERS} workers: medians of {repeats} runs of {rounds} rounds each, in turns."
    rows = [
        one
        | {side: 1e3 * one[f"seconds_{side}"] for side in ("alone", "beside")}
        | {"longest": max(queue["longest"] for queue in one["queues"])}
        for one in results
    ]
    save(out, {"cases": results}, "side", show_table(rows, COLUMNS, note))


def _measure(rival: Rival, data: Data, rounds: int, repeats: int) -> dict[str, Any]:
    alone: list[float] = []
    beside: list[float] = []
    queues = []
    for _ in range(repeats):
        for attack, took in ((NO_ATTACK, alone), (rival.attack, beside)):
            summary = federate(FederationCase(WORKERS, rival.lr, rounds, 1, attack=attack), data)
            took.append(summary.seconds_a_round or math.nan)
        queues.append(as_json(summary.attack.queue))
    ratios = [with_it / without for with_it, without in zip(beside, alone, strict=True)]
    return {
        "case": rival.name,
        "seconds_alone": statistics.median(alone),
        "seconds_beside": statistics.median(beside),
        "ratio": statistics.median(ratios),
        "ratio_lowest": min(beside) / min(alone),
        "ratios": ratios,
        "queues": queues,
    }
