"""`cafe bench certificates`: over data, models, training and batches, are certified samples right?"""

import csv
import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from vfl.api import Simulation, simulate
from vfl.bench.rigs import save, show_table
from vfl.errors import UserError
from vfl.maths.metrics import REBUILT, exact_rows, psnr

TRAINING: Mapping[str, Mapping[str, Any]] = {
    "frozen": {},
    "SGD 0.1": {"lr": 0.1},
    "Adam 1e-3": {"optimizer": "adam", "lr": 1e-3},
}
SEEDS = (0, 1, 2)
COLUMNS = {
    "data": "{data}",
    "model": "{model}",
    "training": "{training}",
    "batch": "{batch}",
    "samples": "{samples}",
    "certified, right": "{certified_right}",
    "certified, wrong": "{certified_wrong}",
    "not certified, right": "{open_right}",
    "not certified, wrong": "{open_wrong}",
}
COUNTS = ("samples", "certified_right", "certified_wrong", "open_right", "open_wrong")


@dataclass(frozen=True)
class Case:
    """One row of the table, run with every seed."""

    data: str
    samples: int
    model: Mapping[str, Any]
    batch: int
    epochs: int
    training: str = "frozen"
    attack: str = "exact"
    named: str = ""
    """The model's name in the table, if not its own."""

    def config(self, folder: Path, seed: int) -> dict[str, Any]:
        """Return the run's config."""
        return {
            "seed": seed,
            "data": _data(self.data, self.samples, folder, seed),
            "model": dict(self.model),
            "federation": {
                "workers": 2 if self.data in TABLES else 4,
                "batch_size": self.batch,
                "epochs": self.epochs,
            },
            "training": dict(TRAINING[self.training]),
            "attack": {"name": self.attack},
        }


TABLES = ("customers", "breast_cancer")
MLP, CNN = {"name": "mlp", "hidden": [64]}, {"name": "cafe_cnn"}
EMBEDDED = {"name": "embedded", "numbers": 3, "width": 9, "hidden": [64], "output": 16}


def cases(short: bool) -> Iterator[Case]:
    """Yield the table's rows."""
    if short:
        yield Case("customers", 40, MLP, 4, 4, "Adam 1e-3")
        yield Case("digits", 24, {"name": "mlp", "hidden": [256]}, 4, 3)
        return
    for training in TRAINING:
        yield Case("customers", 200, MLP, 4, 4, training)
        yield Case("customers", 200, EMBEDDED, 4, 4, training, named="embeddings")
        yield Case("breast_cancer", 200, MLP, 4, 4, training)
    yield Case("customers", 300, MLP, 4, 3, "Adam 1e-3")
    yield Case("breast_cancer", 200, MLP, 7, 3, "Adam 1e-3")
    yield Case("customers", 200, MLP, 8, 4)
    yield Case("breast_cancer", 120, MLP, 40, 60)
    yield Case("digits", 120, {"name": "mlp", "hidden": [256]}, 4, 1, attack="theory", named="mlp, attack theory")
    yield Case("digits", 24, CNN, 8, 2)
    yield Case("digits", 16, CNN, 4, 4, "SGD 0.1")
    yield Case("digits", 16, CNN, 4, 4, "Adam 1e-3")
    yield Case("photos", 16, CNN, 8, 2)
    if "CAFE_DATA" in os.environ:
        for name in ("mnist.npz", "cifar10.npz"):
            if (Path(os.environ["CAFE_DATA"]) / name).exists():
                yield Case(name, 20, CNN, 10, 2)
                yield Case(name, 80, CNN, 40, 1, "Adam 1e-3")
                yield Case(name, 60, CNN, 20, 2, "Adam 1e-3")


def bench_certificates(out: Path | None, short: bool) -> None:
    """Run all cases with all seeds; print what was certified and what was right."""
    seeds, chosen = SEEDS[:1] if short else SEEDS, list(cases(short))
    results: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="cafe-bench-") as folder,
        ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), torch.set_num_threads, (1,)) as pool,
    ):
        runs = [[pool.submit(_run, case, Path(folder), seed) for seed in seeds] for case in chosen]
        for case, own in zip(chosen, runs, strict=True):
            found = [run.result() for run in own]
            about = {"data": case.data.removesuffix(".npz"), "training": f"{case.training}, {case.epochs} epochs"}
            row = {**about, "model": case.named or case.model["name"], "batch": case.batch}
            results.append(row | {key: sum(one[key] for one in found) for key in COUNTS})
            Console(stderr=True, highlight=False).print(", ".join(f"{value}" for value in results[-1].values()))
    total: dict[str, Any] = {"data": "all", "model": "", "training": "", "batch": ""}
    total |= {key: sum(row[key] for row in results) for key in COUNTS}
    certified = total["certified_right"] + total["certified_wrong"]
    note = f"{total['certified_wrong']} of {certified} certified samples are wrong."
    table = show_table([*results, total], COLUMNS, note)
    save(out, {"cases": results, "total": total}, "certificates", table)


def _run(case: Case, folder: Path, seed: int) -> dict[str, int]:
    """Return how many samples of a run are certified or not, and right or not."""
    done = simulate(case.config(folder, seed))
    arrays = done.arrays
    if "certified" not in arrays or "x_true" not in arrays:
        raise UserError(f"cafe bench certificates: the run on {case.data} recovered no data")
    certified, right = torch.tensor(arrays["certified"]), right_samples(done)
    return {
        "samples": len(right),
        "certified_right": int((certified & right).sum()),
        "certified_wrong": int((certified & ~right).sum()),
        "open_right": int((~certified & right).sum()),
        "open_wrong": int((~certified & ~right).sum()),
    }


def right_samples(done: Simulation) -> Tensor:
    """Tell which samples are right: every slice of an image at 30 dB, every value of a row, and the label."""
    x, truth = (torch.tensor(done.arrays[name]) for name in ("x", "x_true"))
    right = torch.tensor(done.arrays["labels"] == done.arrays["labels_true"])
    if x.dim() == 2:
        return right & exact_rows(x, truth)
    for box in done.setting.boxes:
        right &= psnr(box.cut(x), box.cut(truth)) >= REBUILT
    return right


def _data(name: str, samples: int, folder: Path, seed: int) -> dict[str, Any]:
    if name == "customers":
        path = folder / f"customers-{os.getpid()}.csv"
        _write_customers(path, samples, seed)
        return {"name": "csv", "path": str(path), "label": "again"}
    if name.endswith(".npz"):
        return {"name": "npz", "path": name, "samples": samples, "test_samples": 0}
    return {"name": name, "samples": samples}


def _write_customers(path: Path, samples: int, seed: int) -> None:
    """Write a table as a bank has: amounts, counts, and categories, which become one column each."""
    draw = np.random.default_rng(seed)
    columns = {
        "income": draw.normal(3000, 900, samples).round(2),
        "age": draw.integers(18, 90, samples),
        "savings": draw.lognormal(9, 1, samples).round(),
        "job": draw.choice(["nurse", "clerk", "driver", "cook", "teacher"], samples),
        "visits": draw.poisson(6, samples),
        "basket": draw.gamma(2.0, 20.0, samples).round(2),
        "discount": draw.uniform(0, 30, samples).round(1),
        "region": draw.choice(["north", "south", "east", "west", "coast"], samples),
        "again": draw.integers(0, 2, samples),
    }
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
