"""`cafe bench faults --long`: an hour of training under attack, in which a party is lost every 10 to 30 seconds."""

import itertools
import math
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from vfl.bench.faults import (
    ALL,
    CHECKPOINT_EVERY,
    LABEL_HOLDER,
    LONGEST,
    SEED,
    SHORTEST,
    SILENCE_SECONDS,
    SURE,
    Fault,
    FaultKind,
    Victim,
    check_alike,
    difference,
    same_updates,
    strike,
)
from vfl.bench.rigs import save
from vfl.bench.rigs.fleet import PATIENCE_SECONDS, Fleet
from vfl.bench.rigs.networks import Hosts, why_no_hosts
from vfl.config import RunConfig, parse_config
from vfl.datasets.slices import load_data
from vfl.errors import RunFailedError, UserError
from vfl.folder.summary import load_summary
from vfl.local.launch import run_federation
from vfl.local.stop import as_ctrl_c
from vfl.net.certs import make_certificates
from vfl.net.tls import COORDINATOR, worker_role

WORKERS = 4
SURVIVOR = worker_role(3).stem
"""Its faults spare its process, which so lives from the first round to the last: what leaks shows there."""
ROUNDS = 4_000
CABLE = ("rate", "750kbit", "burst", "16kb", "latency", "400ms")
"""A round takes most of a second at the coordinator's cable, so that so many rounds take an hour; after the hour the
cables are as wide as usual."""
SLOW_CABLE = ("rate", "512kbit", "burst", "16kb", "latency", "400ms")
"""Slower still, and four workers' uploads in line hold up an answer for longer than `silence_timeout`."""
LEAST_SECONDS = 3_600.0
PAUSE = (10.0, 30.0)
"""Seconds from one fault to the next, unless rounds stand still for longer."""
SETTLED = 20
"""Rounds before the first fault and after the last: memory and descriptors are measured then."""
SAY_EVERY = 10
ATTACK_SECONDS = 1_800.0
"""How long the attack may take after the last round."""
RESTARTS = (FaultKind.KILL, FaultKind.RESTART, FaultKind.REPLACE)


@dataclass(frozen=True)
class Measured:
    """What a party's processes take at one moment: bytes of memory, open descriptors."""

    memory: int
    descriptors: int


def bench_long(
    out: Path | None,
    *,
    rounds: int = ROUNDS,
    pause: tuple[float, float] = PAUSE,
    least_seconds: float = LEAST_SECONDS,
) -> None:
    """Let faults happen for as long as the rounds last, and compare with the same run undisturbed."""
    why = why_no_hosts()
    if why is not None:
        raise UserError(f"cafe bench faults --long: it needs hosts of its own (network namespaces): {why}")
    config = _config(rounds)
    with tempfile.TemporaryDirectory(prefix="cafe-faults-") as folder:
        undisturbed, disturbed = Path(folder) / "undisturbed", Path(folder) / "disturbed"
        run_federation(config, load_data(config), undisturbed)
        disturbed.mkdir()
        with as_ctrl_c(signal.SIGTERM):
            result = _disturb(config, disturbed, pause, least_seconds)
        summary = load_summary(disturbed / "out")
        result |= {
            "seed": SEED,
            "rounds": summary.rounds,
            "redone": sum(one.redone or 0 for one in summary.disturbances),
            "updates": WORKERS * rounds,
            "updates_lost": WORKERS * rounds - same_updates(undisturbed, disturbed / "out"),
            "difference": difference(undisturbed, disturbed / "out"),
            "recovered_alike": _same_recovery(undisturbed, disturbed / "out"),
        }
    save(out, result, "faults --long", _print(result))
    check_alike(result)
    if not result["recovered_alike"]:
        raise RunFailedError("the attack on the disturbed run recovered other numbers than on the undisturbed one")
    if result["seconds"] < least_seconds:
        raise RunFailedError(f"the rounds took {result['seconds']:.0f} s, less than the {least_seconds:.0f} promised")


def faults() -> Iterator[tuple[float, Fault]]:
    """Yield faults without end, always the same, each with a number from 0 to 1 that says how long before it is quiet.

    Every kind strikes every role before any of them comes again.
    """
    draw = random.Random(SEED)  # a schedule that is the same every time  # nosec B311
    others = [worker_role(m).stem for m in range(WORKERS) if m != LABEL_HOLDER]
    while True:
        for kind, victim in draw.sample(ALL, len(ALL)):
            party = {
                Victim.WORKER: draw.choice([one for one in others if one != SURVIVOR or kind not in RESTARTS]),
                Victim.LABEL_HOLDER: worker_role(LABEL_HOLDER).stem,
                Victim.COORDINATOR: COORDINATOR.stem,
            }[victim]
            yield draw.random(), Fault(kind, victim, party, 0, draw.uniform(SHORTEST, LONGEST))


def _config(rounds: int) -> RunConfig:
    tree: dict[str, Any] = {
        "seed": SEED,
        "data": {"name": "digits", "samples": 40, "test_samples": 40},
        "federation": {
            "workers": WORKERS,
            "label_holder": LABEL_HOLDER,
            "batch_size": 4,
            "rounds": rounds,
            **dict.fromkeys(("join_timeout", "rejoin_timeout", "round_timeout"), PATIENCE_SECONDS),
            "silence_timeout": SILENCE_SECONDS,
            "checkpoint_every": CHECKPOINT_EVERY,
        },
        "model": {"name": "mlp", "hidden": [48, 32]},
        "training": {"lr": 0.001, "evaluate_every": 100},
        "attack": {"name": "exact", "method": "subspaces"},
        "transcript": True,
    }
    return parse_config(tree, "cafe bench faults --long")


def _disturb(config: RunConfig, folder: Path, pause: tuple[float, float], widened_after: float) -> dict[str, Any]:
    """Let faults happen until the rounds are nearly over; return what happened, and what the parties took."""
    parties = [COORDINATOR, *(worker_role(m) for m in range(WORKERS))]
    last = (config.federation.rounds or 0) - 2 * SETTLED
    struck: list[dict[str, Any]] = []
    with closing(Hosts([role.stem for role in parties], CABLE, SLOW_CABLE)) as network:
        named = {role: [network.ipv4[role.stem]] for role in (COORDINATOR, worker_role(LABEL_HOLDER))}
        make_certificates(folder / "certs", WORKERS, named)
        with closing(Fleet(config, network, folder / "certs", folder)) as fleet:
            fleet.wait_for_round(SETTLED)
            began, beginning = time.monotonic(), _measure(fleet)
            due = began
            for share, fault in faults():
                due = max(due + pause[0] + share * (pause[1] - pause[0]), time.monotonic())
                if time.monotonic() - began > widened_after:  # what is left of the rounds is not to take another hour
                    widened_after = math.inf
                    network.widen()
                while time.monotonic() < due and fleet.rounds_done() < last:
                    time.sleep(min(0.5, max(0.0, due - time.monotonic())))
                if fleet.rounds_done() >= last:
                    break
                struck.append(_strike_and_wait(fault, fleet, network) | {"at": time.monotonic() - began})
                if len(struck) % SAY_EVERY == 0:
                    _say(
                        f"{(time.monotonic() - began) / 60:.0f} min: {len(struck)} faults, round {fleet.rounds_done()}"
                    )
            fleet.wait_for_round(last + SETTLED)
            end, seconds = _measure(fleet), time.monotonic() - began
            fleet.finish(ATTACK_SECONDS)
            starts = dict(fleet.starts)
    parties_took = {
        name: {"starts": starts[name], "beginning": asdict(beginning[name]), "end": asdict(end[name])}
        for name in starts
    }
    return {"seconds": seconds, "faults": struck, "parties": parties_took}


def _strike_and_wait(fault: Fault, fleet: Fleet, network: Hosts) -> dict[str, Any]:
    done, began = fleet.rounds_done(), time.monotonic()
    afterwards = strike(fault, fleet, network)
    fleet.wait_for_round(done + SURE)
    seconds = time.monotonic() - began
    afterwards()
    return asdict(fault) | {"round": done, "recovered_after": seconds}


def _measure(fleet: Fleet) -> dict[str, Measured]:
    """Return what each party's process takes, the coordinator's with that of its attack."""
    found = {}
    for party, pid in fleet.pids().items():
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        memory, descriptors = (sum(each) for each in zip(*map(_taken, processes), strict=True))
        found[party] = Measured(memory, descriptors)
    return found


def _taken(process: psutil.Process) -> tuple[int, int]:
    try:
        return process.memory_info().rss, process.num_fds()
    except psutil.NoSuchProcess:  # it has just ended
        return 0, 0


def _same_recovery(expected: Path, found: Path) -> bool:
    """Tell whether the attack came to the same numbers in both runs, to the last bit."""
    with np.load(expected / "recovered.npz") as left, np.load(found / "recovered.npz") as right:
        return sorted(left) == sorted(right) and all(np.array_equal(left[k], right[k], equal_nan=True) for k in left)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(result: dict[str, Any]) -> Table:
    table = Table("fault", *Victim, "seconds to recover: median", "worst")
    for kind in FaultKind:
        of_kind = [fault for fault in result["faults"] if fault["kind"] == kind]
        took = [fault["recovered_after"] for fault in of_kind]
        counts = [str(sum(fault["victim"] == victim for fault in of_kind)) for victim in Victim]
        table.add_row(kind, *counts, *((f"{statistics.median(took):.1f}", f"{max(took):.1f}") if took else "--"))
    growth = Table("party", "started", "memory: beginning", "end", "descriptors: beginning", "end")
    for name, party in result["parties"].items():
        both = party["beginning"], party["end"]
        memory, descriptors = (
            [f"{one['memory'] / 1e6:.1f} MB" for one in both],
            [str(one["descriptors"]) for one in both],
        )
        growth.add_row(name, str(party["starts"]), *memory, *descriptors)
    console = Console(highlight=False)
    console.print(table)
    console.print(growth)
    took = [fault["recovered_after"] for fault in result["faults"]] or [0.0]
    apart = [later["at"] - one["at"] for one, later in itertools.pairwise(result["faults"])] or [0.0]
    console.print(f"{WORKERS} workers and the coordinator on hosts of their own; seed {result['seed']}.")
    console.print(f"seconds              {result['seconds']:.0f}")
    console.print(f"faults injected      {len(result['faults'])}, {statistics.median(apart):.0f} s apart (median)")
    console.print(f"rounds completed     {result['rounds']}")
    console.print(f"rounds redone        {result['redone']}")
    console.print(f"seconds to recover   median {statistics.median(took):.1f}, worst {max(took):.1f}")
    console.print(f"updates lost         {result['updates_lost']} of {result['updates']}")
    console.print(f"largest difference   {result['difference']:g} of the final parameters to the undisturbed run's")
    alike = "those of the undisturbed run, to the last bit" if result["recovered_alike"] else "others"
    console.print(f"the attack's numbers {alike}")
    return table
