"""Write a synthetic table like UCI's Adult, whole and as three parties would hold it: the people in it are made up.

    python examples/tables/make_adult.py [FOLDER] [ROWS]

`adult.csv` has all columns. `registry.csv`, `employer.csv` and `bank.csv` have other columns of other people in another
order, with most of the people in common, so that they must be aligned by id before anything can be learned.
"""

import csv
import random
import sys
from pathlib import Path

WORKCLASS = ("Private", "Self-emp", "Local-gov", "State-gov", "Federal-gov")
EDUCATION = ("HS-grad", "Some-college", "Bachelors", "Masters", "Doctorate")
OCCUPATION = ("Tech-support", "Craft-repair", "Sales", "Exec-managerial", "Prof-specialty", "Adm-clerical")
MARITAL = ("Never-married", "Married", "Divorced", "Widowed")
PARTIES = {
    "registry": ("age", "sex", "marital_status", "education"),
    "employer": ("workclass", "occupation", "hours_per_week"),
    "bank": ("capital_gain", "capital_loss", "income"),
}


def person(number: int, draw: random.Random) -> dict[str, object]:
    """Return one made-up person, whose income depends on the other columns."""
    age = min(90, max(17, round(draw.gauss(39, 13))))
    school = draw.choices(range(len(EDUCATION)), (32, 28, 22, 13, 5))[0]
    married = draw.choices(MARITAL, (33, 46, 15, 6))[0]
    hours = min(99, max(1, round(draw.gauss(40, 11))))
    gain = draw.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, draw.randint(100, 20_000)))
    score = 0.6 * school + 0.03 * (age - 39) + 0.04 * (hours - 40) + (married == "Married") + gain / 5_000
    return {
        "person": f"P{number:05d}",
        "age": age,
        "sex": draw.choice(("Female", "Male")),
        "marital_status": married,
        "education": EDUCATION[school],
        "workclass": draw.choices(WORKCLASS, (70, 11, 8, 6, 5))[0],
        "occupation": draw.choice(OCCUPATION),
        "hours_per_week": hours,
        "capital_gain": gain,
        "capital_loss": draw.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, draw.randint(100, 3_000))),
        "income": ">50K" if score + draw.gauss(0, 1) > 2 else "<=50K",
    }


def write(path: Path, columns: tuple[str, ...], people: list[dict[str, object]]) -> None:
    """Write some columns of some people."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("person", *columns), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(people)


def main() -> None:
    """Write the four files."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 240
    draw = random.Random(0)
    people = [person(number, draw) for number in range(rows)]
    write(folder / "adult.csv", tuple(people[0])[1:], people)
    for name, columns in PARTIES.items():
        known = draw.sample(people, k=round(0.95 * rows))
        write(folder / f"{name}.csv", columns, known)


if __name__ == "__main__":
    main()
