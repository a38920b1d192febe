"""`cafe bench federation`: the wire's price, as rounds per second beside the same computation in one process."""

import math
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from server.parameters import Parameters
from vfl.bench.rigs import run_once, save, show_table
from vfl.config import FederationConfig, RunConfig
from vfl.datasets import Data
from vfl.device import keep_freed_memory
from vfl.folder.schema import as_json
from vfl.folder.summary import Summary
from vfl.local.one_process import OneProcess
from vfl.observation import Setting
from vfl.observation.schedule import batches
from vfl.optimisers.training import TrainingConfig
from vfl.partition import partition
from vfl.registry import PluginSection

NO_ATTACK = PluginSection(name="none")
SAMPLES, BATCH_SIZE, SHAPE, CLASSES = 400, 40, (3, 32, 32), 10
COLUMNS = {
    "CIFAR-10 shapes, K = 40": "{case}",
    "one process": "{one_process_rounds_per_second:.2f} rounds/s",
    "federation": "{federation_rounds_per_second:.2f} rounds/s",
    "ratio": "{ratio:.2f}",
    "bytes / raw": "{message_bytes_over_raw:.4f}",
    "on loopback / raw": "{loopback_bytes_over_raw:.4f}",
}


@dataclass(frozen=True)
class FederationCase:
    """One comparison."""

    workers: int
    lr: float
    rounds: int
    repeats: int
    defence: str = "none"
    attack: PluginSection = NO_ATTACK

    @property
    def name(self) -> str:
        """Return the case in words."""
        return f"{self.workers} workers, {'parameters change' if self.lr else 'frozen'}"


def bench_federation(out: Path | None, short: bool) -> None:
    """Measure and print; the two sides take turns, so that other load on the machine hits both."""
    scale = 0.1 if short else 1.0
    repeats = 1 if short else 3
    cases = [
        FederationCase(4, 0.0, int(60 * scale), repeats),
        FederationCase(4, 0.01, int(60 * scale), repeats),
        FederationCase(16, 0.0, int(60 * scale), 1),
    ]
    data = noise()
    results = [_measure(case, data) for case in cases]
    rounds = max(20, int(500 * scale))
    memory = {"rounds": rounds, **as_json(federate(FederationCase(4, 0.0, rounds, 1), data).coordinator_memory)}
    startup = _startup(data)
    show_table(
        results,
        COLUMNS,
        f"The coordinator's memory after {memory['rounds']} rounds: {memory['last'] / 1e6:.0f} MB, "
        f"{memory['growth'] / 1e6:+.1f} MB from the second tenth of them to the last.",
        *(f"From start to end, {what}: {seconds:.1f} s" for what, seconds in startup.items()),
    )
    save(out, {"cases": results, "memory": memory, "startup_seconds": startup})


def _measure(case: FederationCase, data: Data) -> dict[str, Any]:
    alone, federated, ratios = [], [], []
    for _ in range(case.repeats):
        alone.append(_one_process_rate(case, data))
        before = _loopback_bytes()
        summary = federate(case, data)
        loopback = _loopback_bytes() - before
        federated.append(summary.rounds_per_second or math.nan)
        ratios.append(federated[-1] / alone[-1])
    raw = summary.bytes.raw
    return {
        "case": case.name,
        "one_process_rounds_per_second": statistics.median(alone),
        "federation_rounds_per_second": statistics.median(federated),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "message_bytes_over_raw": (summary.bytes_a_round or 0.0) * summary.rounds / raw,
        "loopback_bytes_over_raw": loopback / raw,
    }


def _one_process_rate(case: FederationCase, data: Data) -> float:
    """Return the rounds per second of one process that uses all cores and no wire."""
    keep_freed_memory()  # as the federation's processes do
    torch.set_num_threads(os.cpu_count() or 1)
    config = _config(case)
    setting = Setting.of(config, partition(SHAPE, case.workers), CLASSES, SAMPLES)
    parameters = Parameters(setting, config.training)
    compute = OneProcess(setting, data.x, data.y)
    ends = []
    for number, indices in enumerate(batches("epochs", SAMPLES, BATCH_SIZE, case.rounds, seed=0), start=1):
        gradients, _ = compute(parameters.current, indices)
        parameters.update(number, gradients)
        ends.append(time.monotonic())
    first = len(ends) // 10
    return (len(ends) - 1 - first) / (ends[-1] - ends[first])


def federate(case: FederationCase, data: Data) -> Summary:
    """Return the summary of a run."""
    return run_once(_config(case), data)


def _startup(data: Data) -> dict[str, float]:
    """Return how long a federation of one round takes from start to end, beside importing torch and gRPC once."""
    seconds = {}
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch, grpc"], check=True)
    seconds["import torch and gRPC in one process"] = time.monotonic() - began
    for workers in (4, 16):
        began = time.monotonic()
        federate(FederationCase(workers, 0.0, 1, 1), data)
        seconds[f"{workers} workers, one round"] = time.monotonic() - began
    return seconds


def _config(case: FederationCase) -> RunConfig:
    return RunConfig(
        data=PluginSection(name="none"),
        federation=FederationConfig(workers=case.workers, batch_size=BATCH_SIZE, rounds=case.rounds),
        training=TrainingConfig(lr=case.lr),
        defence=PluginSection(name=case.defence),
        attack=case.attack,
    )


def noise() -> Data:
    """Return noise of CIFAR-10's shape: speed does not depend on what is in the picture."""
    random = torch.Generator().manual_seed(0)
    x = torch.rand(SAMPLES, *SHAPE, generator=random)
    y = torch.randint(CLASSES, (SAMPLES,), generator=random)
    return Data("image", x, y, CLASSES, tuple(map(str, range(SAMPLES))))


def _loopback_bytes() -> int:
    counters = psutil.net_io_counters(pernic=True).get("lo")
    return counters.bytes_sent if counters else 0
