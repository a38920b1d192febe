"""`cafe bench faults`: a run in which every role is lost in every way, beside the same run undisturbed."""

import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from vfl.bench.rigs import save
from vfl.bench.rigs.fleet import PATIENCE_SECONDS, Fleet
from vfl.bench.rigs.networks import Cables, Hosts, Network, why_no_hosts
from vfl.config import RunConfig, parse_config
from vfl.datasets.slices import load_data
from vfl.errors import RunFailedError
from vfl.folder.schema import as_json
from vfl.folder.summary import load_summary
from vfl.folder.transcript import Transcript
from vfl.local.launch import run_federation
from vfl.local.stop import as_ctrl_c
from vfl.net.certs import make_certificates
from vfl.net.tls import COORDINATOR, Role, worker_role
from vfl.observation import Observation

SEED = 8
WORKERS, LABEL_HOLDER = 3, 1
SILENCE_SECONDS = 3.0
"""A party without a sign of life for so long counts as lost."""

SHORTEST, LONGEST = 0.5 * SILENCE_SECONDS, 2.5 * SILENCE_SECONDS
"""The duration of faults that pass by themselves: some before the other parties notice, some after."""

SURE = 3
"""Rounds after a fault that show that it is over: the first may have been complete when it happened."""
CHECKPOINT_EVERY = 5


class FaultKind(StrEnum):
    """What happens to a party."""

    KILL = "kill -9, started again"
    RESTART = "SIGTERM, started again"
    STOP = "SIGSTOP, then SIGCONT"
    REPLACE = "SIGSTOP, another takes its place"
    CUT = "connections cut for a while"
    SLOW = "slow connections for a while"


class Victim(StrEnum):
    """The party that it happens to."""

    WORKER = "worker"
    LABEL_HOLDER = "label holder"
    COORDINATOR = "coordinator"


@dataclass(frozen=True)
class Fault:
    """One fault: so many rounds after the one before was over, and for how many seconds if it passes by itself."""

    kind: FaultKind
    victim: Victim
    party: str
    after: int
    seconds: float


ALL = list(product(FaultKind, Victim))
ALL.remove((FaultKind.REPLACE, Victim.COORDINATOR))
"""No process can replace a frozen coordinator, which holds the port that the workers know."""

ONE_OF_EACH = [
    (FaultKind.KILL, Victim.COORDINATOR),
    (FaultKind.RESTART, Victim.WORKER),
    (FaultKind.STOP, Victim.WORKER),
    (FaultKind.REPLACE, Victim.LABEL_HOLDER),
    (FaultKind.CUT, Victim.LABEL_HOLDER),
    (FaultKind.SLOW, Victim.WORKER),
]


def bench_faults(out: Path | None, short: bool, long: bool = False) -> None:
    """Let the same run happen twice, once with faults, and compare to the last bit; `long` takes an hour."""
    if long:
        from vfl.bench.long_faults import bench_long

        return bench_long(out)
    # In the short benchmark all faults last so long that they are noticed, however busy the machine is.
    rounds, faults = (120, schedule(ONE_OF_EACH, LONGEST)) if short else (500, schedule(2 * ALL))
    config = _config(rounds)
    with tempfile.TemporaryDirectory(prefix="cafe-faults-") as folder:
        undisturbed, disturbed = Path(folder) / "undisturbed", Path(folder) / "disturbed"
        run_federation(config, load_data(config), undisturbed)
        disturbed.mkdir()
        why = "--short" if short else why_no_hosts()
        with as_ctrl_c(signal.SIGTERM):
            struck = _disturb(config, faults, disturbed, hosts=why is None)
        summary = load_summary(disturbed / "out")
        result = {
            "seed": SEED,
            "namespaces": why is None,
            "faults": [asdict(fault) | happened for fault, happened in zip(faults, struck, strict=True)],
            "rounds": summary.rounds,
            "redone": sum(one.redone or 0 for one in summary.disturbances),
            "disturbances": [as_json(one) for one in summary.disturbances],
            "updates": WORKERS * rounds,
            "updates_lost": WORKERS * rounds - same_updates(undisturbed, disturbed / "out"),
            "difference": difference(undisturbed, disturbed / "out"),
        }
    save(out, result, "faults", _print(result, why))
    check_alike(result)


def check_alike(result: dict[str, Any]) -> None:
    """End the command with a sentence and exit code 1 unless the disturbed run came to the numbers of the other."""
    lost, difference = result["updates_lost"], result["difference"]
    if lost or difference != 0:  # also when it is not a number
        raise RunFailedError(
            f"the disturbed run is not the undisturbed one: {lost} of {result['updates']} updates lost, the final "
            f"parameters differ by {difference:g}"
        )


def schedule(pairs: list[tuple[FaultKind, Victim]], shortest: float = SHORTEST) -> list[Fault]:
    """Put faults into an order and give them parties, distances and durations, always the same."""
    draw = random.Random(SEED)  # a schedule that is the same every time  # nosec B311
    others = [worker_role(m).stem for m in range(WORKERS) if m != LABEL_HOLDER]
    faults = []
    for kind, victim in draw.sample(pairs, len(pairs)):
        party = {
            Victim.WORKER: draw.choice(others),
            Victim.LABEL_HOLDER: worker_role(LABEL_HOLDER).stem,
            Victim.COORDINATOR: COORDINATOR.stem,
        }[victim]
        # A checkpoint lies between two faults, so that a killed coordinator still knows of the one before.
        after = CHECKPOINT_EVERY + draw.randrange(1, 5)
        faults.append(Fault(kind, victim, party, after, draw.uniform(shortest, LONGEST)))
    return faults


def _config(rounds: int) -> RunConfig:
    tree: dict[str, Any] = {
        "seed": SEED,
        "data": {"name": "digits", "samples": 200, "test_samples": 50},
        "federation": {
            "workers": WORKERS,
            "label_holder": LABEL_HOLDER,
            "batch_size": 20,
            "rounds": rounds,
            **dict.fromkeys(("join_timeout", "rejoin_timeout", "round_timeout"), PATIENCE_SECONDS),
            "silence_timeout": SILENCE_SECONDS,
            "checkpoint_every": CHECKPOINT_EVERY,
            "fixed_secrets": True,  # both runs are to draw the same noise
        },
        "model": {"name": "mlp", "hidden": [24]},
        "training": {"optimizer": "adam", "lr": 0.001, "evaluate_every": 20},
        "defence": {"name": "noise", "scale": 0.01},
        "transcript": True,
    }
    return parse_config(tree, "cafe bench faults")


def _disturb(config: RunConfig, faults: list[Fault], folder: Path, hosts: bool) -> list[dict[str, Any]]:
    """Let all faults happen in one run; return after which round each happened, and how long rounds stood still."""
    workers = [worker_role(m) for m in range(WORKERS)]
    network: Network
    names: dict[Role, list[str]] = {}
    if hosts:
        network = made = Hosts([role.stem for role in (COORDINATOR, *workers)])
        names = {role: [made.ipv4[role.stem]] for role in (COORDINATOR, workers[LABEL_HOLDER])}
    else:
        network = Cables([role.stem for role in workers], workers[LABEL_HOLDER].stem)
    struck = []
    with closing(network):
        make_certificates(folder / "certs", WORKERS, names)
        with closing(Fleet(config, network, folder / "certs", folder)) as fleet:
            for fault in faults:
                fleet.wait_for_round(fleet.rounds_done() + fault.after)
                done, began = fleet.rounds_done(), time.monotonic()
                afterwards = strike(fault, fleet, network)
                fleet.wait_for_round(done + SURE)
                struck.append({"round": done, "recovered_after": time.monotonic() - began})
                afterwards()
            fleet.finish()
    return struck


def strike(fault: Fault, fleet: Fleet, network: Network) -> Callable[[], object]:
    """Let a fault happen; return what ends it once the rounds go on."""
    party = fault.party
    match fault.kind:
        case FaultKind.KILL | FaultKind.RESTART:
            fleet.signal(party, signal.SIGKILL if fault.kind == FaultKind.KILL else signal.SIGTERM).wait()
            fleet.start(party)
        case FaultKind.STOP:
            frozen = fleet.signal(party, signal.SIGSTOP)
            time.sleep(fault.seconds)
            frozen.send_signal(signal.SIGCONT)
        case FaultKind.REPLACE:
            frozen = fleet.signal(party, signal.SIGSTOP)
            fleet.start(party)
            return lambda: _wake(frozen, fleet)
        case FaultKind.CUT:
            network.cut(party)
            time.sleep(fault.seconds)
            network.mend(party)
        case FaultKind.SLOW:
            network.slow(party)
            return lambda: network.mend(party)
    return lambda: None


def _wake(replaced: "subprocess.Popen[bytes]", fleet: Fleet) -> None:
    """Wake a process that was replaced; it is refused while rounds go on. Then end it, as it would try for long."""
    replaced.send_signal(signal.SIGCONT)
    fleet.wait_for_round(fleet.rounds_done() + SURE)
    replaced.kill()


def same_updates(expected: Path, found: Path) -> int:
    """Count the updates of single workers that the coordinator used in both runs, alike to the last bit."""

    def updates(out: Path) -> Iterator[list[dict[str, torch.Tensor]]]:
        for seen in Transcript(out / "transcript"):
            assert isinstance(seen, Observation)
            bottoms = [dict(bottom) for bottom in seen.gradients.bottoms]
            bottoms[LABEL_HOLDER] |= {f"top {name}": tensor for name, tensor in seen.gradients.top.items()}
            yield bottoms

    return sum(
        left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
        for one, other in zip(updates(expected), updates(found), strict=False)
        for left, right in zip(one, other, strict=True)
    )


def difference(expected: Path, found: Path) -> float:
    """Return the largest difference between the parameters that two runs ended with."""
    left, right = (torch.load(out / "model.pt", weights_only=True) for out in (expected, found))
    return float(torch.stack([(left[name] - right[name]).abs().max() for name in left]).max())  # nan, if one is


def _print(result: dict[str, Any], why: str | None) -> Table:
    table = Table("fault", *Victim, "seconds to recover: median", "worst")
    for kind in FaultKind:
        faults = [fault for fault in result["faults"] if fault["kind"] == kind]
        counts = [str(sum(fault["victim"] == victim for fault in faults)) for victim in Victim]
        took = [fault["recovered_after"] for fault in faults]
        table.add_row(kind, *counts, f"{statistics.median(took):.1f}", f"{max(took):.1f}")
    console = Console(highlight=False)
    console.print(table)
    where = "on hosts of their own (network namespaces)" if why is None else f"on loopback ({why})"
    console.print(f"{WORKERS} workers and the coordinator, each a process, {where}; seed {result['seed']}.")
    console.print(f"faults injected      {len(result['faults'])}")
    console.print(f"rounds completed     {result['rounds']}")
    console.print(f"rounds redone        {result['redone']}")
    took = [fault["recovered_after"] for fault in result["faults"]]
    console.print(f"seconds to recover   median {statistics.median(took):.1f}, worst {max(took):.1f}")
    console.print(f"updates lost         {result['updates_lost']} of {result['updates']}")
    console.print(f"largest difference   {result['difference']:g} of the final parameters to the undisturbed run's")
    return table
