"""The fitted model: coefficients for the terms, the measured points they come from, and what they predict."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vfl.errors import UserError
from vfl.plan.machine import Floors
from vfl.plan.terms import Terms

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
