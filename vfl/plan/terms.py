"""What time and memory are made of: a few quantities for each phase and process, and the coefficients fitted to them.

A phase's time is the sum of its quantities, each times a coefficient that `cafe bench scale` fitted. A name that ends
in gflop counts arithmetic, one in gigabytes counts bytes that are moved; all others count calls, which cost as much as
the interpreter makes them cost.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attacker.inversion.invert import chunk_size
from attacker.least_squares import SKETCH
from vfl.errors import UserError
from vfl.plan.machine import Floors
from vfl.plan.workload import Layer, Workload

import torch  # isort: skip

Terms = dict[str, float]

PHASES = ("federation", "observing", "steps I and II", "step III", "scoring")
PROCESSES = ("coordinator", "worker", "attack", "launcher")
DOUBLE = 8

KNOWN = {"pairs gflop": 2.5, "matrix gflop": 11.0}
"""Coefficients that are not fitted, as multiples of the machine's own price of a gflop: of large products, and of the
singular value decomposition of a large matrix. In runs small enough to measure, noise hides both."""


def seconds_terms(load: Workload) -> dict[str, Terms]:
    """Return the quantities that each phase's time goes with; a phase that does not happen has none."""
    traffic, data = load.traffic.total / 1e9, load.samples * load.sample_bytes / 1e9
    terms: dict[str, Terms] = {
        "federation": {
            "runs": 1,
            "workers": load.parties,
            "worker rounds": load.parties * load.rounds,
            "gflop": 3 * load.flop * _played(load) / 1e9,  # forward, and backward twice as much
            "gigabytes": traffic + data,
        },
        "scoring": {"runs": 1, "samples": load.samples, "gigabytes": data},
    }
    if load.layers:
        kept = load.kept_rounds
        terms["observing"] = {
            "runs": 1,
            "worker rounds": load.workers * kept,
            "gflop": sum(_factorising(load, layer) for layer in load.layers) * kept / 1e9,
            "gigabytes": load.rounds * load.model_bytes / 1e9,
        }
        terms["steps I and II"] = _steps_one_two(load)
        blind = [layer for layer in load.layers if not layer.sees_data]
        if blind:
            size = chunk_size((load.slice_bytes // 4,), torch.device("cpu"))
            terms["step III"] = {
                "chunks": len(blind) * math.ceil(load.samples / size),
                "gflop": 3 * load.samples * sum(layer.flop for layer in blind) / 1e9,
            }
    return terms


def memory_terms(load: Workload) -> dict[str, Terms]:
    """Return the quantities that each process's peak memory goes with, in gigabytes but for the process itself."""
    data = load.samples * load.sample_bytes / 1e9
    terms: dict[str, Terms] = {
        "coordinator": {
            "process": 1,
            "workers": load.parties,
            "model gigabytes": load.model_bytes / 1e9,
            "recovered gigabytes": recovered_bytes(load) / 1e9,
        },
        "worker": {
            "process": 1,
            "slice gigabytes": (load.samples + load.test_samples) * load.slice_bytes / 1e9,
            "model gigabytes": load.largest_model_bytes / 1e9,
            "outputs gigabytes": load.batch_size * load.outputs_bytes / 1e9,
        },
        "launcher": {"process": 1, "data gigabytes": data},
    }
    if load.layers:
        terms["attack"] = {
            "process": 1,
            "model gigabytes": load.model_bytes / 1e9,
            "kept gigabytes": kept_bytes(load) / 1e9,
            "found gigabytes": found_bytes(load) / 1e9,
        }
    return terms


def recovered_bytes(load: Workload) -> int:
    """Return what the attack hands to the coordinator: every sample, and what flows into the attacked layers."""
    return load.samples * (load.sample_bytes + sum(4 * layer.inputs for layer in load.layers)) if load.layers else 0


def kept_bytes(load: Workload) -> int:
    """Return what `exact` keeps of the rounds until it recovers."""
    kept, size = load.kept_rounds, load.batch_size
    if load.needs.method == "subspaces":
        factors = sum(DOUBLE * kept * size * (layer.inputs + layer.outputs) for layer in load.layers)
        beside = load.needs.choice is not None and load.needs.choice.beside is not None
        return factors + (sketched(load, min(load.rounds, 2 * load.samples)) if beside else 0)
    return sketched(load, kept)


def sketched(load: Workload, rounds: int) -> int:
    """Return what least squares keeps of so many rounds."""
    return sum(DOUBLE * rounds * (min(layer.outputs, SKETCH) * layer.inputs + layer.outputs) for layer in load.layers)


def found_bytes(load: Workload) -> int:
    """Return what `exact` holds at the end: each sample's h and v at each worker; by least squares matrices too."""
    found = sum(DOUBLE * load.samples * (layer.inputs + layer.outputs) for layer in load.layers)
    if load.needs.method == "subspaces":
        return found
    widest = max(min(layer.outputs, SKETCH) * layer.inputs for layer in load.layers)
    return found + DOUBLE * load.samples * (3 * load.kept_rounds + widest)


def _played(load: Workload) -> float:
    """Return how many samples are played: batches are full but for the last of an epoch."""
    per_epoch = math.ceil(load.samples / load.batch_size)
    return load.rounds / per_epoch * load.samples


def _factorising(load: Workload, layer: Layer) -> float:
    """Return the operations that reduce one worker's gradient of one round."""
    if load.needs.method != "subspaces":
        return 2.0 * min(layer.outputs, SKETCH) * layer.outputs * layer.inputs
    short, long = sorted((layer.inputs, layer.outputs))
    width = load.batch_size + 10
    if width >= short:
        return 4.0 * long * short**2 + 8 * short**3  # a whole singular value decomposition
    return 6.0 * long * short * width + 4.0 * (2 * short + long) * width**2 + 12.0 * width**3


def _steps_one_two(load: Workload) -> Terms:
    n, k, kept = load.samples, load.batch_size, load.kept_rounds
    if load.needs.method != "subspaces":
        solving = 6.0 * n * kept * min(n, kept)
        products = sum(2.0 * n * kept * min(layer.outputs, SKETCH) * layer.inputs for layer in load.layers)
        return {"runs": 1, "slices": n * len(load.layers), "matrix gflop": solving / 1e9, "gflop": products / 1e9}
    epochs = kept * k / n
    meeting = sum(epochs * n * (2.0 * k * k * layer.inputs + 10.0 * k**3) for layer in load.layers)
    apart = sum(kept * (8.0 * k * k * (layer.inputs + layer.outputs) + 40.0 * k**3) for layer in load.layers)
    judging = sum(kept * 4.0 * k * layer.inputs * layer.outputs for layer in load.layers)
    pairs = sum(2.0 * n * n * layer.inputs for layer in load.layers)
    gflop = (meeting + apart + judging) / 1e9
    return {"runs": 1, "slices": n * len(load.layers), "gflop": gflop, "pairs gflop": pairs / 1e9}


SHIPPED = Path(__file__).parent / "scale.json"
Coefficients = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Fitted:
    """Coefficients by phase (seconds of one core) and by process (gigabytes), and where they were measured."""

    seconds: Coefficients
    memory: Coefficients
    floors: Floors
    ranges: Mapping[str, tuple[float, float]]
    """The smallest and the largest of what was measured: beyond it a prediction is an extrapolation."""
    shared: float
    """Gigabytes of each process that all of them share: libraries that are in memory once."""
    about: Mapping[str, Any]
    points: Sequence[Mapping[str, Any]]

    def save(self, path: Path) -> None:
        """Write the model to a file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def load_fitted(path: Path = SHIPPED) -> Fitted:
    """Read the model that comes with the release, or another."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        tree["floors"] = Floors(**tree["floors"])
        tree["ranges"] = {name: (low, high) for name, (low, high) in tree["ranges"].items()}
        return Fitted(**tree)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is no file that `cafe bench scale --out` wrote: {error}") from None


def fit_coefficients(
    terms: Sequence[Terms], measured: Sequence[float], known: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the coefficients, none of them negative, with the least relative errors over all points.

    Coefficients that are `known` are kept; the others are fitted to what they leave over.
    """
    from scipy.optimize import nnls

    given = {name: value for name, value in (known or {}).items() if any(name in one for one in terms)}
    names = [name for name in dict.fromkeys(name for one in terms for name in one) if name not in given]
    rows = np.array([[one.get(name, 0.0) for name in names] for one in terms], dtype=float)
    weights = 1 / np.maximum(np.array(measured, dtype=float), 1e-3)
    scale = np.maximum((rows * weights[:, None]).max(axis=0), 1e-30)
    rest = np.array([spent - predict(given, one) for spent, one in zip(measured, terms, strict=True)])
    solution, _ = nnls(rows * weights[:, None] / scale, rest * weights)
    return {name: float(value) for name, value in zip(names, solution / scale, strict=True)} | given


def predict(coefficients: Mapping[str, float], terms: Terms, slower: Mapping[str, float] | None = None) -> float:
    """Return the sum of terms times coefficients; `slower` says how many times longer each kind of work takes here."""
    times = slower or {}
    return sum(coefficients.get(name, 0.0) * value * times.get(_kind(name), 1.0) for name, value in terms.items())


def _kind(term: str) -> str:
    for ending, kind in (("gflop", "gflop"), ("gigabytes", "gigabyte")):
        if term.endswith(ending):
            return kind
    return "call"
