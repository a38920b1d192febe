"""`cafe bench scale`: runs of up to 8,000 samples and 64 workers, and the model of their cost for `cafe plan`."""

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from vfl.bench.rigs.meter import CostMeter, peak_memory
from vfl.config import RunConfig, parse_config
from vfl.datasets.slices import load_data
from vfl.folder.journal import NAME
from vfl.folder.schema import as_json
from vfl.folder.summary import load_summary
from vfl.folder.versions import versions
from vfl.local.launch import run_federation
from vfl.plan.machine import Floors, best_of, describe_machine, measure_floors
from vfl.plan.main import ranged
from vfl.plan.terms import KNOWN, PHASES, PROCESSES, Fitted, fit_coefficients, memory_terms, predict, seconds_terms
from vfl.plan.workload import Workload, workload_of
from vfl.referee import score_run

SMALL: dict[str, Any] = {"model": {"name": "mlp", "hidden": [64]}, "attack": {"name": "exact"}}
TERMS = {"seconds": seconds_terms, "memory": memory_terms}


def point(samples: int, workers: int, batch_size: int = 20, **changes: Any) -> dict[str, Any]:
    """Return the config of a measured run: two epochs whose batches share at most one sample, as with large N."""
    shape = changes.pop("shape", [1, 16, 16] if workers < 16 else [3, 32, 32])
    federation = {"workers": workers, "batch_size": batch_size, "epochs": 2, "schedule": "orthogonal"}
    federation |= changes.pop("federation", {})
    tree = {"data": {"name": "synthetic", "samples": samples, "shape": shape}, "federation": federation, **SMALL}
    return tree | changes


CNN = {"name": "vfl.bench.rigs.small_cnn:small_cnn"}
SQUARES = {"name": "exact", "method": "least_squares"}
PAPER = {"model": {"name": "cafe_cnn"}, "data": {"name": "photos", "samples": 24}}
DEMO = {"epochs": 4, "schedule": "epochs"}
POINTS: tuple[dict[str, Any], ...] = (
    point(200, 2, 10),
    point(1000, 2),
    point(100, 2, 10, model=CNN),
    point(400, 4),
    point(400, 16),
    point(200, 2, 10, federation={"epochs": 12}, attack=SQUARES),
    point(24, 4, 4, **PAPER),
    point(120, 4, 24, model=PAPER["model"], data={"name": "photos", "samples": 120}, federation=DEMO),
    point(24, 4, 12, **PAPER, training={"lr": 0.01}, attack={"name": "none"}),
    point(8000, 2, shape=[1, 32, 32]),
    point(400, 64),
    point(2000, 2),
    point(4000, 2),
    point(400, 8),
    point(400, 32),
)
SHORT: tuple[dict[str, Any], ...] = (point(30, 2, 5), point(60, 2, 5), point(30, 2, 5, attack={"name": "none"}))


def bench_scale(out: Path | None, short: bool) -> None:
    """Measure every point, fit, print measured beside predicted; with --out write the model that `cafe plan` reads."""
    wanted, console = SHORT if short else POINTS, Console(stderr=True, highlight=False)
    floors, points = _measured_before(out)
    if not points:
        measure_run(parse_config(SHORT[0], "cafe bench scale"))  # warms up: imports are no part of a run
    for number, tree in enumerate(wanted, start=1):
        config = parse_config(tree, "cafe bench scale")
        console.print(f"{number} of {len(wanted)}: {_name(config)}")
        if tree in [one["config"] for one in points]:
            continue
        points.append({"config": tree, **measure_run(config)})
        floors = best_of(floors, measure_floors())
        if out is not None:
            text = json.dumps({"floors": asdict(floors), "points": points})
            _unfinished(out).write_text(text + "\n", encoding="utf-8")
    points = [one for one in points if one["config"] in wanted]
    fitted = fit_points(points, floors)
    show_fit(fitted)
    show_left_out(points, floors)
    if out is not None:
        fitted.save(out)
        _unfinished(out).unlink(missing_ok=True)


def _unfinished(out: Path) -> Path:
    return out.with_suffix(".points")


def _measured_before(out: Path | None) -> tuple[Floors, list[dict[str, Any]]]:
    """Return what an earlier, interrupted measurement for this file has: the whole takes long."""
    if out is None or not _unfinished(out).exists():
        return measure_floors(), []
    tree = json.loads(_unfinished(out).read_text(encoding="utf-8"))
    return Floors(**tree["floors"]), tree["points"]


def measure_run(config: RunConfig) -> dict[str, Any]:
    """Run a config; return the seconds of a core by phase, the bytes, and the most memory by process."""
    data, attacked = load_data(config), config.attack.name != "none"
    with tempfile.TemporaryDirectory(prefix="cafe-bench-") as folder:
        out, began = Path(folder), time.monotonic()
        with CostMeter(config.federation.workers + 1 + attacked) as meter:
            run_federation(config, data, out)
            scoring = time.process_time()
            score_run(out, config, data)
            scoring = time.process_time() - scoring
        lines = [json.loads(line) for line in (out / NAME).read_text(encoding="utf-8").splitlines()]
        summary = load_summary(out)
    seconds = {"federation": sum(meter.computed(name) for name in meter.peak if name != "attack")}
    if attacked:
        seconds |= _attack_seconds(meter, lines)
        seconds["scoring"] = scoring
    memory = {
        "coordinator": meter.peak["coordinator"],
        "worker": max(peak for name, peak in meter.peak.items() if name.startswith("worker")),
        "launcher": peak_memory(psutil.Process()),
    }
    if attacked:
        memory["attack"] = meter.peak["attack"]
    return {
        "seconds": seconds,
        "bytes": summary.bytes.model_dump(exclude={"raw"}),
        "memory": memory,
        "shared": meter.shared,
        "wall_seconds": {**as_json(summary.seconds), "all": time.monotonic() - began},
    }


def _attack_seconds(meter: CostMeter, lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Divide what the attack's process computed by the times at which its steps reported to the journal."""
    steps: dict[str, list[float]] = {}
    for line in lines:
        if line["kind"] == "step":
            steps.setdefault(line["name"], []).append(line["t"])
    attacking = next(line["t"] for line in lines if line["kind"] == "state" and line["state"] == "attacking")
    # The journal delays a step's last line until the next step reports, so the line before it gives the time.
    observed = meter.computed("attack", [attacking, *steps.get("observing", [])[:-1]][-1])
    inverting = meter.computed("attack", steps["step III"][0]) if "step III" in steps else meter.computed("attack")
    seconds = {"observing": observed, "steps I and II": inverting - observed}
    if "step III" in steps:
        seconds["step III"] = meter.computed("attack") - inverting
    return seconds


def fit_points(points: Sequence[dict[str, Any]], floors: Floors) -> Fitted:
    """Fit the coefficients of every phase and process to the points that have it."""
    loads = [workload_of(parse_config(one["config"], "cafe bench scale")) for one in points]
    ranges: dict[str, tuple[float, float]] = {}
    for name in ranged(loads[0]):
        values = [value for load in loads if (value := ranged(load)[name])]
        ranges[name] = (min(values), max(values)) if values else (0, 0)
    return Fitted(
        seconds={
            phase: _fit(loads, points, phase, kind="seconds", floors=floors)
            for phase in PHASES
            if any(phase in p["seconds"] for p in points)
        },
        memory={process: _fit_memory(loads, points, process, floors) for process in PROCESSES},
        floors=floors,
        ranges=ranges,
        shared=statistics.median([one["shared"] for one in points if one["shared"]] or [0]) / 1e9,
        about={"machine": describe_machine(), "versions": versions(), "measured": time.strftime("%Y-%m-%d")},
        points=points,
    )


def _fit(
    loads: Sequence[Workload], points: Sequence[dict[str, Any]], what: str, *, kind: str, floors: Floors
) -> dict[str, float]:
    terms = [TERMS[kind](load)[what] for load, one in zip(loads, points, strict=True) if what in one[kind]]
    measured = [one[kind][what] for one in points if what in one[kind]]
    return fit_coefficients(terms, measured, {name: times * floors.gflop for name, times in KNOWN.items()})


def _fit_memory(
    loads: Sequence[Workload], points: Sequence[dict[str, Any]], process: str, floors: Floors
) -> dict[str, float]:
    """Return coefficients in gigabytes, raised until no measured run took more: a plan must not be too small."""
    fitted = _fit(loads, points, process, kind="memory", floors=floors)
    most = [
        one["memory"][process] / predict(fitted, memory_terms(load)[process])
        for load, one in zip(loads, points, strict=True)
        if process in one["memory"]
    ]
    return {name: value * max(1.0, *most) / 1e9 for name, value in fitted.items()}


def show_fit(fitted: Fitted) -> None:
    """Print every measured point beside the fitted model's prediction."""
    console = Console(highlight=False, width=150)
    configs = [parse_config(dict(one["config"]), "cafe bench scale") for one in fitted.points]
    loads = [workload_of(config) for config in configs]
    for kind, names, unit in (("seconds", PHASES, "seconds of a core"), ("memory", PROCESSES, "peak MB")):
        more = ["bytes"] if kind == "seconds" else []
        table = Table("", *names, *more, title=f"{unit}: measured / predicted")
        for config, load, one in zip(configs, loads, fitted.points, strict=True):
            beside = _beside(fitted, load, one, kind)
            cells = [beside.get(name, "") for name in names]
            if kind == "seconds":
                counted = {"up": load.traffic.up, "down": load.traffic.down, "peer": load.traffic.peer}
                apart = sum(abs(counted[key] - one["bytes"][key]) for key in counted)
                cells.append(f"{sum(counted.values()) / 1e6:.2f} MB, {apart} B off")
            table.add_row(_name(config), *cells)
        console.print(table)


def _beside(fitted: Fitted, load: Workload, point: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Return what was measured beside what is predicted of every phase in seconds, or of every process in MB."""
    coefficients, terms = {"seconds": fitted.seconds, "memory": fitted.memory}[kind], TERMS[kind](load)
    measured, predicted = {"seconds": (1.0, 1.0), "memory": (1e-6, 1e3)}[kind]  # of bytes, and of GB
    return {
        name: f"{found * measured:.3g} / {predict(coefficients[name], terms[name]) * predicted:.3g}"
        for name, found in point[kind].items()
    }


def show_left_out(points: Sequence[dict[str, Any]], floors: Floors) -> None:
    """Print the prediction for the largest run by a fit to all others: how good extrapolation is."""
    largest = max(points, key=lambda one: one["config"]["data"]["samples"])
    config = parse_config(largest["config"], "cafe bench scale")
    fitted = fit_points([one for one in points if one is not largest], floors)
    load = workload_of(config)
    console = Console(highlight=False, width=150)
    console.print(f"Left out of the fit: {_name(config)}")
    for kind, unit in (("seconds", "s"), ("memory", "MB")):
        cells = [f"{name} {text} {unit}" for name, text in _beside(fitted, load, largest, kind).items()]
        console.print(f"  {kind}, measured / predicted: {', '.join(cells)}")


def _name(config: RunConfig) -> str:
    federation, attack = config.federation, config.attack
    samples = (config.data.model_extra or {}).get("samples")
    by = " by least squares" if (attack.model_extra or {}).get("method") else ""
    moving = "" if config.training.frozen else ", parameters change"
    return (
        f"N {samples}, M {federation.workers}, K {federation.batch_size}, {config.model.name.rpartition(':')[2]}"
        f"{moving}, {attack.name}{by}"
    )
