"""Two parties' files on the same customers: a bank's and a shop's, made by a seed."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

JOBS = ("nurse", "clerk", "driver", "cook", "teacher")
REGIONS = ("north", "south", "east", "west", "coast")


def write_files(folder: Path, customers: int = 300, seed: int = 5) -> list[Path]:
    """Write bank.csv and shop.csv; who bought again depends on both."""
    draw = np.random.default_rng(seed)
    income, age = draw.normal(3000, 900, customers).round(2), draw.integers(18, 90, customers)
    savings, discount = draw.lognormal(9, 1, customers).round(), draw.uniform(0, 30, customers).round(1)
    job, region = draw.choice(JOBS, customers), draw.choice(REGIONS, customers)
    visits, basket = draw.poisson(6, customers), draw.gamma(2.0, 20.0, customers).round(2)
    again = (income / 900 + visits / 3 + draw.normal(0, 1, customers) > 5.2).astype(int)
    bank = {"customer": range(customers), "income": income, "age": age, "savings": savings, "job": job}
    shop = {"customer": range(customers), "visits": visits, "basket": basket, "discount": discount, "region": region}
    return [_write(folder / "bank.csv", bank), _write(folder / "shop.csv", shop | {"again": again})]


def bank_config(files: list[Path], **changes: Any) -> dict[str, Any]:
    """A run on the two files under Adam 1e-3 in batches of four, as a new user would write it."""
    return {
        "seed": 0,
        "data": {"name": "csv", "files": [str(path) for path in files], "label": "again", "id": "customer"},
        "federation": {"workers": 2, "batch_size": 4, "epochs": 3, "label_holder": 1},
        "model": {"name": "mlp", "hidden": [64]},
        "training": {"optimizer": "adam", "lr": 0.001},
        "attack": {"name": "exact"},
    } | changes


def _write(path: Path, columns: dict[str, Any]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path
