"""The leaderboard's runs: attacks and defences on four small data sets, in one process, each in a folder of its own.

`python experiments/leaderboard/make.py runs/leaderboard`, then `cafe submit runs/leaderboard/*`. What is there already
is not run again.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import yaml

import vfl
from vfl.errors import CafeError

CONFIGS = Path(__file__).parents[2] / "configs" / "leaderboard"
WORKER, HOLDERS = {"worker": 1}, ["coordinator", "label_holder"]
UPLOADS = [
    {"name": "noise", "scale": 1.0}, {"name": "dp", "epsilon": 10.0, "batches": "known"}, {"name": "prune"},
    {"name": "quantize", "bits": 1}, {"name": "fake_gradients"}, {"name": "clip", "norm": 0.03},
    {"name": "indices"}, {"name": "soteria"},
]  # fmt: skip
ANSWERS = [
    {"name": "random_labels"}, {"name": "marvell"}, {"name": "discretise"}, {"name": "max_norm"},
    {"name": "noise", "scale": 1.0},
]  # fmt: skip
ATTACKS = [
    ("coordinator", "exact"), (WORKER, "label_clusters"), (WORKER, "label_direction"), (WORKER, "label_norm"),
    ("coordinator", "theory"), ("coordinator", "rgap"), ("coordinator", "least_squares"),
    ("coordinator", "averaging"), (HOLDERS, "output_inversion"), (HOLDERS, "grn"), ("coordinator", "cafe"),
]  # fmt: skip


def runs() -> list[tuple[str, dict[str, Any]]]:
    """Return all runs by name: what is most worth knowing first, the data sets in turn."""
    made = []
    plain = [{"adversary": seat, "attack": {"name": name}} for seat, name in ATTACKS]
    defended = [{"adversary": "coordinator", "attack": {"name": "exact"}, "defence": one} for one in UPLOADS]
    answered = [
        {"adversary": WORKER, "attack": {"name": "label_clusters"}, "defence": {"answers": one}} for one in ANSWERS
    ]
    for change in (*plain[:2], *defended, *answered, *plain[2:]):
        for name in ("breast_cancer", "digits", "adult", "photos"):
            said = "-".join(str(part) for part in (name, change["attack"]["name"], _defence(change)) if part)
            made.append((said, {**yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")), **change}))
    return made


def _defence(change: dict[str, Any]) -> str:
    section = change.get("defence", {})
    return "answers-" + section["answers"]["name"] if "answers" in section else section.get("name", "")


def main(out: Path, seconds: float, only: str) -> None:
    """Make the runs that are missing and whose names begin so, for as long as there is time."""
    torch.set_num_threads(1)
    until = time.monotonic() + seconds
    for name, config in runs():
        if time.monotonic() > until:
            print("the time is over", flush=True)
            return
        if (out / name / "summary.json").exists() or not name.startswith(only):
            continue
        try:
            run = vfl.simulate(config, out=out / name)
            print(f"{name}: {run.result.attack.known}", flush=True)
        except CafeError as error:  # an attack that cannot run there shows nothing
            print(f"{name}: {str(error).partition(';')[0]}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(float(one) for one in sys.argv[2:3] or ["3600"]), *(sys.argv[3:4] or [""]))
