"""Two parties' files as people have them, a network of one's own and the config of a run: what a new user brings."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import yaml

CITIES = ("Zürich", "København", "Łódź", "Αθήνα", "München")
JOBS = ("Pflegerin", "Lehrer", "cook, self-employed", "clerk", "")
MONTHS = tuple(f"{year}-{month:02d}-01" for year in (2023, 2024) for month in range(1, 13))
MODEL = '''
"""A network as one writes it: embeds a party's columns."""
from torch import nn


def tabular(shape, width=48):
    return nn.Sequential(nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, 16), nn.ReLU())
'''


def write_project(folder: Path, customers: int = 300, seed: int = 11, **changes: Any) -> Path:
    """Write bank.csv, shop.csv, my_model.py and run.yaml; return the config's path."""
    draw = np.random.default_rng(seed)
    ids = [f"K-{number:05d}" for number in draw.permutation(90_000)[: customers + 30]]
    count = len(ids)
    income = draw.lognormal(8.0, 0.4, count).round(2)
    debt = draw.gamma(1.5, 900.0, count).round(2)
    bank = {
        "customer": ids,
        "income €": [f"{value:.2f}" if draw.random() > 0.05 else "" for value in income],
        "debt": debt,
        "opened": draw.choice(MONTHS, count),
        "city": draw.choice(CITIES, count),
        "job": draw.choice(JOBS, count),
    }
    visits, basket = draw.poisson(6, count), draw.gamma(2.0, 20.0, count).round(2)
    chance = income / 1500 + visits / 3 - debt / 2500 + draw.normal(0, 0.7, count)
    shop = {
        "customer": ids,
        "visits": visits,
        "basket": basket,
        "newsletter": draw.choice(("ja", "nein", "?"), count),
        "bought again": np.where(chance > np.median(chance), "ja", "nein"),
    }
    _write(folder / "bank.csv", bank, range(count - 15))
    _write(folder / "shop.csv", shop, draw.permutation(range(15, count)))
    (folder / "my_model.py").write_text(MODEL, encoding="utf-8")
    config: dict[str, Any] = {
        "seed": 0,
        "data": {
            "name": "csv",
            "files": ["bank.csv", "shop.csv"],
            "id": "customer",
            "label": "bought again",
            "categorical": ["opened"],
            "missing": "indicator",
            "test_samples": customers // 5,
        },
        "federation": {"workers": 2, "batch_size": 16, "epochs": 5, "label_holder": 1},
        "model": {"name": "my_model:tabular"},
        "training": {"optimizer": "adam", "lr": 0.001},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config | changes, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


def _write(path: Path, columns: dict[str, Any], rows: Any) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([values[row] for values in columns.values()] for row in rows)
