"""`cafe bench training`: a federation learns beside a plain PyTorch loop: loss curve, accuracy, seconds a round."""

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from server.schedule import batches
from vfl.allocator import keep_freed_memory
from vfl.config import FederationConfig, RunConfig, TrainingConfig
from vfl.datasets import Data
from vfl.errors import UserError
from vfl.launch import run_federation
from vfl.models.whole import whole_model
from vfl.partition import partition
from vfl.registry import PluginSection
from vfl.results import load_summary
from vfl.slices import load_data

SAMPLES, TEST_SAMPLES, BATCH_SIZE, ROUNDS, SHORT_ROUNDS = 400, 200, 40, 200, 5
LR, MOMENTUM = 0.02, 0.9
FILES = ("mnist.npz", "cifar10.npz")


@dataclass(frozen=True)
class Trained:
    """A training: the loss of every round, the share of test samples that are right, and what a round took."""

    losses: list[float]
    accuracy: float
    seconds: float


def bench_training(out: Path | None, short: bool) -> None:
    """Measure and print: two data sets, four and sixteen workers."""
    if "CAFE_DATA" not in os.environ:
        raise UserError(f"cafe bench training: set CAFE_DATA to the folder that holds {' and '.join(FILES)}")
    rounds = SHORT_ROUNDS if short else ROUNDS
    results = [_compare(file, workers, rounds) for file in FILES for workers in (4, 16)]
    _print(results)
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _compare(file: str, workers: int, rounds: int) -> dict[str, Any]:
    config = RunConfig(
        data=PluginSection.model_validate(
            {"name": "npz", "path": file, "samples": SAMPLES, "test_samples": TEST_SAMPLES}
        ),
        federation=FederationConfig(workers=workers, batch_size=BATCH_SIZE, rounds=rounds),
        training=TrainingConfig(lr=LR, momentum=MOMENTUM),
    )
    data = load_data(config)
    alone, federated = _one_process(config, data, rounds), _federation(config, data)
    return {
        "data": file,
        "workers": workers,
        "rounds": rounds,
        "loss_first": alone.losses[0],
        "loss_last": alone.losses[-1],
        "largest_relative_difference": largest_difference(federated.losses, alone.losses),
        "one_process_accuracy": alone.accuracy,
        "federation_accuracy": federated.accuracy,
        "one_process_seconds_a_round": alone.seconds,
        "federation_seconds_a_round": federated.seconds,
    }


def largest_difference(found: list[float], expected: list[float]) -> float:
    """Return the largest difference of two curves in any round, relative to the second one."""
    return max(abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True))


def _federation(config: RunConfig, data: Data) -> Trained:
    with tempfile.TemporaryDirectory(prefix="cafe-bench-") as folder:
        run_federation(config, data, Path(folder), quiet=True)
        summary = load_summary(Path(folder))
    train = summary["train"]
    return Trained(train["losses"], train["test_accuracy"], 1 / summary["rounds_per_second"])


def _one_process(config: RunConfig, data: Data, rounds: int) -> Trained:
    """Train as anybody would with all data in one place and all cores."""
    keep_freed_memory()  # as the federation's processes do
    torch.set_num_threads(os.cpu_count() or 1)
    assert data.x_test is not None
    assert data.y_test is not None
    boxes = partition(data.sample_shape, config.federation.workers)
    slices, tested = ([box.cut(x).contiguous() for box in boxes] for x in (data.x, data.x_test))
    model = whole_model(config.model, [box.shape for box in boxes], data.classes, config.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    losses, ends = [], []
    for rows in batches("epochs", len(data.x), BATCH_SIZE, rounds, config.seed):
        optimizer.zero_grad()
        loss = cross_entropy(model([part[rows] for part in slices]), data.y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        ends.append(time.monotonic())
    with torch.no_grad():
        right = int((model(tested).argmax(1) == data.y_test).sum())
    first = rounds // 10  # while everything warms up, as in a run's rounds_per_second
    return Trained(losses, right / len(data.y_test), (ends[-1] - ends[first]) / (rounds - 1 - first))


def _print(results: list[dict[str, Any]]) -> None:
    title = f"{SAMPLES} samples, K = {BATCH_SIZE}, {results[0]['rounds']} rounds; federation / one process"
    table = Table("data", "workers", "loss", "largest difference", "test accuracy", "seconds a round", title=title)
    for one in results:
        table.add_row(
            Path(one["data"]).stem,
            str(one["workers"]),
            f"{one['loss_first']:.3f} to {one['loss_last']:.3f}",
            f"{one['largest_relative_difference']:.1e}",
            f"{one['federation_accuracy']:.1%} / {one['one_process_accuracy']:.1%}",
            f"{one['federation_seconds_a_round']:.3f} / {one['one_process_seconds_a_round']:.3f}",
        )
    Console(highlight=False).print(table)
