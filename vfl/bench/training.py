"""`cafe bench training`: a federation learns beside a plain PyTorch loop: loss curve and accuracy."""

import os
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from vfl.bench.rigs import run_once, save, show_table
from vfl.config import FederationConfig, RunConfig
from vfl.datasets import Data
from vfl.datasets.slices import load_data
from vfl.errors import UserError
from vfl.local.launch import worker_threads
from vfl.models.whole import whole_model
from vfl.observation.schedule import batches
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection

SAMPLES, TEST_SAMPLES, BATCH_SIZE, ROUNDS, SHORT_ROUNDS = 400, 200, 40, 200, 5
LR = 1e-3
FILES = ("mnist.npz", "cifar10.npz")
COLUMNS = {
    "data": "{data.stem}",
    "workers": "{workers}",
    "loss": "{loss_first:.3f} to {loss_last:.3f}",
    "largest difference": "{largest_relative_difference:.1e}",
    "test accuracy": "{federation_accuracy:.1%} / {one_process_accuracy:.1%}",
}


def bench_training(out: Path | None, short: bool) -> None:
    """Measure and print: two data sets, four and sixteen workers."""
    if "CAFE_DATA" not in os.environ:
        raise UserError(f"cafe bench training: set CAFE_DATA to the folder that holds {' and '.join(FILES)}")
    rounds = SHORT_ROUNDS if short else ROUNDS
    results = [_compare(file, workers, rounds) for file in FILES for workers in (4, 16)]
    title = f"{SAMPLES} samples, K = {BATCH_SIZE}, {rounds} rounds; federation / one process"
    table = show_table([one | {"data": Path(one["data"])} for one in results], COLUMNS, title=title)
    save(out, {"cases": results}, "training", table)


def _compare(file: str, workers: int, rounds: int) -> dict[str, Any]:
    section = {"name": "npz", "path": file, "samples": SAMPLES, "test_samples": TEST_SAMPLES}
    config = RunConfig(
        data=PluginSection.model_validate(section),
        federation=FederationConfig(workers=workers, batch_size=BATCH_SIZE, rounds=rounds),
        training=TrainingConfig(optimizer="adam", lr=LR),
    )
    data = load_data(config)
    (losses, accuracy), federated = _one_process(config, data, rounds), run_once(config, data).train
    return {
        "data": file,
        "workers": workers,
        "rounds": rounds,
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "largest_relative_difference": max(abs(a - b) / abs(b) for a, b in zip(federated.losses, losses, strict=True)),
        "one_process_accuracy": accuracy,
        "federation_accuracy": federated.test_accuracy,
    }


def _one_process(config: RunConfig, data: Data, rounds: int) -> tuple[list[float], float]:
    """Train with a plain PyTorch loop on all data in one place; return each round's loss, and the test accuracy."""
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
    return losses, right / len(data.y_test)
