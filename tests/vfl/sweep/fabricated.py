"""A plan as a sweep's file describes it, and rows as runs would leave them, without running anything."""

from pathlib import Path

import yaml

from vfl.folder.summary import Summary
from vfl.sweep.cell import Row
from vfl.sweep.plan import Plan, load_plan
from vfl.sweep.results import NUMBERS

BASE = {
    "seed": 1,
    "data": {"name": "digits", "samples": 30, "test_samples": 20},
    "federation": {"workers": 2, "batch_size": 6, "epochs": 2, "join_timeout": 60, "round_timeout": 60},
    "model": {"name": "mlp", "hidden": [8]},
}
TRAINING = {"attack": {"name": "none"}, "training.lr": 0.1, "federation.rounds": 20}


def write_sweep(folder: Path, **keys) -> Path:
    """A sweep's file over the small base."""
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump({"base": BASE, **keys}, sort_keys=False))
    return path


def planned(folder: Path, **keys) -> Plan:
    return load_plan(write_sweep(folder, **keys))


def row(**numbers: float) -> Row:
    """A row that is complete; `psnr=31` stands for attack.psnr_mean."""
    short = {"psnr": "attack.psnr_mean", "loss": "train.loss_end", "accuracy": "train.test_accuracy"}
    known = {short.get(name, name): value for name, value in numbers.items()}
    return Row(numbers=dict.fromkeys(NUMBERS) | known)


def summary_of(losses: list[float] | None = None, over_rounds: list[dict] | None = None) -> Summary:
    """A summary with these curves and nothing else to speak of."""
    tree = {
        "config": {**BASE, "attack": {"name": "cafe"}},
        "samples": 30,
        "rounds": len(losses or ()),
        "seconds": {},
        "bytes": {},
        "train": {"losses": losses or []},
        "attack": {"name": "cafe", "used": [], "over_rounds": over_rounds or []},
    }
    return Summary.model_validate(tree)
