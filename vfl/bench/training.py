"""`cafe bench training`: a federation learns beside a plain PyTorch loop: loss curve and accuracy."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from server.schedule import batches
from vfl.bench.rigs import save
from vfl.config import FederationConfig, RunConfig
from vfl.datasets import Data
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.folder.summary import load_summary
from vfl.local.launch import run_federation, worker_threads
from vfl.models.whole import whole_model
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection

SAMPLES, TEST_SAMPLES, BATCH_SIZE, ROUNDS, SHORT_ROUNDS = 400, 200, 40, 200, 5
LR = 1e-3
FILES = ("mnist.npz", "cifar10.npz")


@dataclass(frozen=True)
class Trained:
    """A training: the loss of every round, and the share of test samples that are right at the end."""

    losses: list[float]
    accuracy: float


def bench_training(out: Path | None, short: bool) -> None:
    """Measure and print: two data sets, four and sixteen workers."""
    if "CAFE_DATA" not in os.environ:
        raise UserError(f"cafe bench training: set CAFE_DATA to the folder that holds {' and '.join(FILES)}")
    rounds = SHORT_ROUNDS if short else ROUNDS
    results = [_compare(file, workers, rounds) for file in FILES for workers in (4, 16)]
    _print(results)
    save(out, results)


def _compare(file: str, workers: int, rounds: int) -> dict[str, Any]:
    config = RunConfig(
        data=PluginSection.model_validate(
            {"name": "npz", "path": file, "samples": SAMPLES, "test_samples": TEST_SAMPLES}
        ),
        federation=FederationConfig(workers=workers, batch_size=BATCH_SIZE, rounds=rounds),
        training=TrainingConfig(optimizer="adam", lr=LR),
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
    }


def largest_difference(found: list[float], expected: list[float]) -> float:
    """Return the largest difference of two curves in any round, relative to the second one."""
    return max(abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True))


def _federation(config: RunConfig, data: Data) -> Trained:
    with tempfile.TemporaryDirectory(prefix="cafe-bench-") as folder:
        run_federation(config, data, Path(folder))
        train = load_summary(Path(folder)).train
    assert train.test_accuracy is not None
    return Trained(train.losses, train.test_accuracy)


def _one_process(config: RunConfig, data: Data, rounds: int) -> Trained:
    """Train with a plain PyTorch loop on all data in one place."""
    # As many threads as a worker has: sums in another order differ in the last digit, and training makes that grow.
    torch.set_num_threads(worker_threads(config.federation.workers))
    assert data.x_test is not None
    assert data.y_test is not None
    boxes = partition(data.sample_shape, config.federation.workers)
    slices, tested = ([box.cut(x).contiguous() for box in boxes] for x in (data.x, data.x_test))
    model = whole_model(config.model, [box.shape for box in boxes], data.classes, config.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    losses = []
    for rows in batches("epochs", len(data.x), BATCH_SIZE, rounds, seed=config.seed):
        optimizer.zero_grad()
        loss = cross_entropy(model([part[rows] for part in slices]), data.y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        right = int((model(tested).argmax(1) == data.y_test).sum())
    return Trained(losses, right / len(data.y_test))


def _print(results: list[dict[str, Any]]) -> None:
    title = f"{SAMPLES} samples, K = {BATCH_SIZE}, {results[0]['rounds']} rounds; federation / one process"
    table = Table("data", "workers", "loss", "largest difference", "test accuracy", title=title)
    for one in results:
        table.add_row(
            Path(one["data"]).stem,
            str(one["workers"]),
            f"{one['loss_first']:.3f} to {one['loss_last']:.3f}",
            f"{one['largest_relative_difference']:.1e}",
            f"{one['federation_accuracy']:.1%} / {one['one_process_accuracy']:.1%}",
        )
    Console(highlight=False).print(table)
