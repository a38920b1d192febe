"""Writes customers.csv, by a seed: a bank's and a shop's columns with dates, categories, gaps and many alphabets.

python examples/tables/make_customers.py
"""

import csv
from pathlib import Path

import numpy as np

JOBS = ("Bäckerin", "ingénieur", "護士", "καθηγητής", "водій")
PLACES = ("Île-de-France", "Zürich", "東京", "São Paulo", "القاهرة")


def rows(count: int = 80, seed: int = 5) -> list[dict[str, object]]:
    """Return the customers; who buys again, and for how much, depends on both parties' columns."""
    draw = np.random.default_rng(seed)
    income, age = draw.normal(3000, 900, count).round(2), draw.integers(18, 90, count)
    savings, visits = draw.lognormal(9, 1, count).round(), draw.poisson(6, count)
    basket, discount = draw.gamma(2.0, 20.0, count).round(2), draw.uniform(0, 30, count).round(1)
    score = income / 900 + visits / 3 + draw.normal(0, 1, count)
    columns: dict[str, list[object]] = {
        "Kunde": [f"K-{number:04}" for number in range(count)],
        "Einkommen €": list(np.where(draw.random(count) < 0.1, "", income.astype(str))),
        "Alter": list(age),
        "Ersparnis": list(savings),
        "métier": list(np.where(draw.random(count) < 0.05, "?", draw.choice(JOBS, count))),
        "seit": [f"{2019 + month // 4}-{1 + 3 * (month % 4):02}-01" for month in draw.integers(0, 12, count)],
        "visites": list(visits),
        "panier €": list(np.where(draw.random(count) < 0.1, "NA", basket.astype(str))),
        "Rabatt %": list(discount),
        "所在地": list(draw.choice(PLACES, count)),
        "wieder": ["ja" if one > np.median(score) else "nein" for one in score],
        "Umsatz": list((40 * score + draw.normal(0, 20, count)).round(2)),
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def write(path: Path) -> None:
    """Write the table."""
    found = rows()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    write(Path(__file__).parent / "customers.csv")
