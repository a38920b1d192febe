"""`cafe bench all`: every hot path as a ratio to its floor, both measured in the same run, in a JSON that compares."""

import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vfl.bench.rigs import save
from vfl.bench.rigs.hot_paths import HotPath, hot_paths
from vfl.device import keep_freed_memory, one_thread
from vfl.errors import UserError
from vfl.files import read_bounded
from vfl.folder.versions import commit, versions
from vfl.limits import JSON_BYTES
from vfl.plan.machine import describe_machine


def bench_all(out: Path | None, short: bool, compare: tuple[Path, Path] | None = None) -> None:
    """Measure and print, or print two earlier measurements beside each other."""
    if compare is not None:
        old, new = (_load(path) for path in compare)
        if bool(old["short"]) != bool(new["short"]):
            kinds = ["short" if one["short"] else "full" for one in (old, new)]
            lengths = " and ".join(f"{path} is a {kind} one" for path, kind in zip(compare, kinds, strict=True))
            raise UserError(f"--compare: a short measurement says nothing beside a full one: {lengths}")
        show_comparison(old, new)
        return
    keep_freed_memory()  # as all parties do
    with one_thread():
        results = [measure_path(path, 2 if short else path.turns) for path in hot_paths(short)]
    table = _print(results)
    about = {"commit": commit(), "versions": versions(), "machine": describe_machine(), "short": short}
    save(out, {**about, "paths": results}, "all", table)


def measure_path(path: HotPath, turns: int) -> dict[str, Any]:
    """Let a path and its floor take turns; the first turn warms up, and the ratio is the median of the others'."""
    ours, floor = [], []
    for _ in range(turns + 1):
        ours.append(_spent(path.ours))
        floor.append(_spent(path.floor))
    ratios = [one / other for one, other in zip(ours[1:], floor[1:], strict=True)]
    return {
        "path": path.name,
        "floor": path.against,
        "seconds": statistics.median(ours[1:]),
        "floor_seconds": statistics.median(floor[1:]),
        "ratio": statistics.median(ratios),
        "ratio_lowest": min(ours[1:]) / min(floor[1:]),
        "turns": turns,
    }


def show_comparison(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Print two measurements path by path; ratios compare across machines, milliseconds only on one."""
    before = {one["path"]: one for one in old["paths"]}
    after = {one["path"]: one for one in new["paths"]}
    names = [_name(one) for one in (old, new)]
    table = Table("path", *(f"{what} {name}" for what in ("ratio", "ms") for name in names), "ratio, new / old")
    for path in dict.fromkeys([*before, *after]):
        pair = [before.get(path), after.get(path)]
        ratios = [f"{one['ratio']:.2f}" if one else "" for one in pair]
        times = [f"{one['seconds'] * 1e3:.2f}" if one else "" for one in pair]
        change = f"{after[path]['ratio'] / before[path]['ratio']:.2f}" if all(pair) else ""
        table.add_row(path, *ratios, *times, change)
    console = Console(highlight=False, width=130)
    console.print(table)
    for name, one in zip(names, (old, new), strict=True):
        console.print(f"{name}: {_about(one)}", soft_wrap=True)


def _name(tree: dict[str, Any]) -> str:
    """Return the measured commit, shortened, and `-dirty` if there were uncommitted changes."""
    commit, dirty, _ = str(tree.get("commit") or "?").partition("-dirty")
    return commit[:12] + dirty


def _about(tree: dict[str, Any]) -> str:
    """Say where and with what a measurement was made."""
    parts = {**tree["machine"], **tree["versions"]}
    return ", ".join(f"{name} {value}" for name, value in parts.items()) or "on an unknown machine"


def _spent(work: Callable[[], object]) -> float:
    """Return the CPU time that work takes on all threads: on a busy machine the wall clock also counts waiting."""
    began = time.process_time()
    work()
    return time.process_time() - began


def _print(results: list[dict[str, Any]]) -> Table:
    table = Table("hot path", "ours", "floor", "ratio", "lowest", "the floor is")
    for one in results:
        times = (f"{one[key] * 1e3:.2f} ms" for key in ("seconds", "floor_seconds"))
        ratios = (f"{one[key]:.2f}" for key in ("ratio", "ratio_lowest"))
        table.add_row(one["path"], *times, *ratios, one["floor"])
    Console(highlight=False, width=130).print(table)
    return table


def _load(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(read_bounded(path, JSON_BYTES))
        if not isinstance(tree, dict) or not all({"path", "ratio", "seconds"} <= one.keys() for one in tree["paths"]):
            raise ValueError("it has no paths")
        for one in tree["paths"]:
            if not all(_is_positive(one[key]) for key in ("ratio", "seconds")):
                raise ValueError(f"the ratio or the time of {one['path']} is no number above 0")
        about = {"short": False, "machine": {}, "versions": {}} | tree
        if not isinstance(about["machine"], dict) or not isinstance(about["versions"], dict):
            raise ValueError("its machine and versions are no keys with values")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"--compare {path}: is no file that `cafe bench all --out` wrote ({error})") from None
    return about


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
