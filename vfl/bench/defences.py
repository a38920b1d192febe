"""`cafe bench defences`: what each defence costs, and a worker's checks, as a share of what a round computes anyway."""

import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from vfl.bench.federation import FederationCase, federate, noise
from vfl.bench.rigs import save
from vfl.config.places import Place
from vfl.device import keep_freed_memory, one_thread
from vfl.models import build_bottom, build_top
from vfl.observation import BOTTOM, TOP, Tensors, with_prefix
from vfl.optimisers.replay import replay_of
from vfl.optimisers.training import TrainingConfig
from vfl.registry import PluginSection
from worker.defences import Plan, Played, Swapped, built_for, defences
from worker.keys import FixedSecret
from worker.steps import largest

SHAPE, BATCH_SIZE, SAMPLES, ROUNDS = (3, 16, 16), 40, 800, 8000
RATE = 0.001
WIDTH = 10
"""Of a worker's output."""
Step = Callable[[Tensors, Played], object]
CASES: tuple[dict[str, Any], ...] = (
    {"name": "fake_gradients"},
    {"name": "fake_gradients", "reading": "bounded"},
    {"name": "dp", "epsilon": 10.0},
    {"name": "noise"},
    {"name": "noise", "kind": "laplace"},
    {"name": "prune"},
    {"name": "quantize"},
    {"name": "quantize", "stochastic": True},
    {"name": "quantize", "bits": 1},
    {"name": "clip", "norm": 1e-3},
    {"name": "soteria"},
    {"name": "soteria", "mask": "batch", "probes": 1},
)
"""Of uploads. Options that are not named have their defaults."""
SENT: tuple[tuple[Place, dict[str, Any]], ...] = (
    ("outputs", {"name": "noise"}),
    ("outputs", {"name": "clip"}),
    ("outputs", {"name": "quantize"}),
    ("outputs", {"name": "no_peek"}),
    ("outputs", {"name": "bottleneck"}),
    ("answers", {"name": "marvell"}),
    ("answers", {"name": "max_norm"}),
    ("answers", {"name": "noise"}),
    ("answers", {"name": "random_labels"}),
    ("answers", {"name": "discretise"}),
)
"""Of what goes to the label holder and comes back: for one worker's batch, here of two classes."""
SECRET = FixedSecret(0, "the bench")


def bench_defences(out: Path | None, short: bool) -> None:
    """Measure and print; round and defences take turns on one thread, so that other load hits all of them."""
    keep_freed_memory()  # as a worker does
    with one_thread():
        results = measured(2 if short else 15)
    results["federation"] = _federation(rounds=5 if short else 60, repeats=1 if short else 5)
    save(out, results, "defences", _print(results))


def measured(turns: int) -> dict[str, Any]:
    """Return what a round takes, and each defence beside it."""
    # This thread's CPU time: on a busy machine the wall clock also counts waiting.
    clock = time.thread_time
    play = _round()
    checks = [{"name": "steps", "optimizer": one} for one in ("sgd", "adam")]
    named = [*(("uploads", case) for case in CASES), *SENT, *(("checks", case) for case in checks)]
    steps = [*map(_uploading, CASES), *(_exchanging(*sent) for sent in SENT), *map(_checking, checks)]
    took: list[list[float]] = [[] for _ in named]
    ratios: list[list[float]] = [[] for _ in named]
    first = [0.0] * len(named)
    rounds: list[float] = []
    for turn in range(turns + 1):
        for at, step in enumerate(steps):
            began = clock()
            gradients, played = play(turn)
            middle = clock()
            step(gradients, played)
            ended = clock()
            if turn == 0:  # draws candidates, finds layers, warms up
                first[at] = ended - middle
                continue
            rounds.append(middle - began)
            took[at].append(ended - middle)
            ratios[at].append((ended - middle) / (middle - began))
    cases = [
        {
            "place": place,
            "defence": case,
            "first_seconds": first[at],
            "seconds": statistics.median(took[at]),
            "share_of_round": statistics.median(ratios[at]),
            "share_lowest": min(took[at]) / min(rounds),
        }
        for at, (place, case) in enumerate(named)
    ]
    return {"round_seconds": statistics.median(rounds), "turns": turns, "cases": cases}


def _federation(rounds: int, repeats: int) -> dict[str, Any]:
    """Return what fake gradients cost a federation of four, in seconds a round; with and without them in turns."""
    data = noise()
    seconds: dict[str, list[float]] = {"none": [], "fake_gradients": []}
    for _ in range(repeats):
        for name, took in seconds.items():
            took.append(federate(FederationCase(4, 0.01, rounds, 1, name), data).seconds_a_round or math.nan)
    pairs = zip(seconds["fake_gradients"], seconds["none"], strict=True)
    return {
        **{f"{name}_seconds": statistics.median(took) for name, took in seconds.items()},
        "more": statistics.median([faked / true - 1 for faked, true in pairs]),
        "more_lowest": min(seconds["fake_gradients"]) / min(seconds["none"]) - 1,
    }


def _uploading(case: dict[str, Any]) -> Step:
    plan = Plan(0, SAMPLES, BATCH_SIZE, ROUNDS, "epochs", secret=SECRET)
    return defences.build(PluginSection.model_validate(case)).start(plan).apply


def _checking(case: dict[str, Any]) -> Step:
    """Return what a worker does to new parameters: are they finite, and what the optimiser makes of its upload?"""
    replay = replay_of(TrainingConfig(optimizer=case["optimizer"], lr=RATE))
    assert replay is not None

    def step(gradients: Tensors, played: Played) -> None:
        own = with_prefix(BOTTOM, dict(played.model.state_dict()))
        wanted = replay.step(own, {name: gradients[name] for name in own}, RATE)
        for right in wanted.values():
            largest(right)
            torch.equal(right, right.clone())  # what the coordinator sends is another copy

    return step


def _exchanging(place: Place, case: dict[str, Any]) -> Step:
    """Return what a defence does to a batch's outputs or answers, and to the gradient of its part of the loss."""
    defence = built_for(place, PluginSection.model_validate(case))
    random = torch.Generator().manual_seed(0)
    tensor = torch.randn(BATCH_SIZE, WIDTH, generator=random) / BATCH_SIZE
    labels = torch.arange(BATCH_SIZE) % 2

    def step(gradients: Tensors, played: Played) -> None:  # noqa: ARG001
        defence.exchange(tensor, Swapped(played.number, played.rows, played.draws, labels))
        output = tensor.clone().requires_grad_()
        if place == "outputs" and (more := defence.penalty(played.x, output)) is not None:
            torch.autograd.grad(more, output)

    return step


def _round() -> Callable[[int], tuple[Tensors, Played]]:
    """Return a round: forward and backward of the paper's network on one batch; the label holder's top is outside."""
    section = PluginSection(name="cafe_cnn")
    bottom, top = build_bottom(section, SHAPE, 0, 0), build_top(section, [WIDTH] * 4, 10, 0)
    names, parameters = zip(*bottom.named_parameters(), strict=True)
    random = torch.Generator().manual_seed(0)
    top_gradients = {name: torch.randn(one.shape, generator=random) / 100 for name, one in top.named_parameters()}
    x = torch.rand(BATCH_SIZE, *SHAPE, generator=random)
    at_output = torch.randn(BATCH_SIZE, WIDTH, generator=random) / BATCH_SIZE
    rows = torch.arange(BATCH_SIZE)

    def play(turn: int) -> tuple[Tensors, Played]:
        found = torch.autograd.grad(bottom(x), parameters, at_output)
        gradients = with_prefix(BOTTOM, dict(zip(names, found, strict=True))) | with_prefix(TOP, top_gradients)
        return gradients, Played(turn + 1, rows, x, bottom, SECRET.draws("bench", turn))

    return play


def _print(results: dict[str, Any]) -> Table:
    title = f"a round computes {results['round_seconds'] * 1e3:.0f} ms"
    table = Table(title, "once", "a round", "share of the round", "lowest")
    for case in results["cases"]:
        options = {key: value for key, value in case["defence"].items() if key != "name"}
        said = ", ".join(f"{key}: {value}" for key, value in options.items())
        where = "" if case["place"] == "uploads" else f"{case['place']}: "
        table.add_row(
            where + case["defence"]["name"] + (f" ({said})" if said else ""),
            f"{case['first_seconds']:.2f} s",
            f"{case['seconds'] * 1e3:.1f} ms",
            f"{case['share_of_round']:.0%}",
            f"{case['share_lowest']:.0%}",
        )
    console, whole = Console(highlight=False), results["federation"]
    console.print(table)
    console.print(
        f"A federation of four, parameters changing: {whole['none_seconds'] * 1e3:.0f} ms a round, with fake gradients "
        f"at all workers {whole['fake_gradients_seconds'] * 1e3:.0f} ms: {whole['more']:+.0%} (lowest of each: "
        f"{whole['more_lowest']:+.0%})."
    )
    return table
