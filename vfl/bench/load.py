"""`cafe bench load`: many workers for many rounds on one machine, with a coordinator or an attack that lags behind."""

import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from attacker.interface import Attack, AttackPlugin, Observation, Progress, Recovery, Setting
from vfl.bench.rigs import run_once, save
from vfl.bench.rigs.meter import GrowthMeter
from vfl.config import RunConfig, parse_config
from vfl.datasets.slices import load_data
from vfl.folder.schema import as_json
from vfl.folder.summary import load_summary
from vfl.local.launch import run_federation

HELD_SECONDS, FREE_SECONDS = 0.3, 0.1
"""How a coordinator is slowed down: it is stopped and continued in turns."""

SLOW_MODEL = 512
"""Neurons in the two hidden layers of the model whose uploads are to outrun the coordinator: 1 MB a worker."""


class Dawdler(AttackPlugin):
    """An attack that sleeps in every round and counts the rounds that come in order."""

    seconds: float = 0.1

    def start(self, _setting: Setting) -> Attack:
        """Begin to count."""
        return _Dawdling(self.seconds)


class _Dawdling:
    def __init__(self, seconds: float) -> None:
        self._seconds, self._seen = seconds, 0

    def observe(self, observation: Observation) -> None:
        time.sleep(self._seconds)
        self._seen += observation.round == self._seen + 1

    def recover(self, _progress: Progress) -> Recovery:
        return Recovery(used=(), notes=(str(self._seen),))


def bench_load(out: Path | None, short: bool) -> None:
    """Measure and print."""
    sizes, rounds = ((4,), 200) if short else ((16, 64), 1000)
    workers, few = (4, 12) if short else (16, 100)
    console = Console(highlight=False)
    table = Table(f"{rounds} rounds", "memory: second tenth", "last tenth", "descriptors: second tenth", "last tenth")
    steady = [_steady(size, rounds, table) for size in sizes]
    console.print(table)
    for one in steady:
        console.print(f"{one['workers']} workers: {one['rounds_per_second']:.1f} rounds a second")
    result = {
        "steady": steady,
        "held": _held_back(workers, few, console),
        "behind": _behind(3 * few, console),
    }
    save(out, result, "load", table)


def _steady(workers: int, rounds: int, table: Table) -> dict[str, Any]:
    """Run many rounds; memory and descriptors should be in the last tenth what they were in the second."""
    config = _config(workers, rounds, training={"lr": 0.01}, transcript=True)
    with tempfile.TemporaryDirectory(prefix="cafe-bench-") as folder:
        with GrowthMeter(workers + 1, Path(folder)) as meter:
            run_federation(config, load_data(config), Path(folder))
        summary = load_summary(Path(folder))
    last = max(range(1, workers), key=lambda m: meter.tenth(f"worker {m}", 10, rounds).memory)
    parties = {"coordinator": "coordinator", "label holder": "worker 0", "largest other worker": f"worker {last}"}
    rate = summary.rounds_per_second
    result: dict[str, Any] = {"workers": workers, "rounds": summary.rounds, "rounds_per_second": rate, "parties": {}}
    for party, name in parties.items():
        early, late = (meter.tenth(name, which, rounds) for which in (2, 10))
        memory, descriptors = [early.memory, late.memory], [early.descriptors, late.descriptors]
        result["parties"][party] = {"memory": memory, "descriptors": descriptors}
        table.add_row(
            f"{workers} workers: {party}", *(f"{size / 1e6:.1f} MB" for size in memory), *map(str, descriptors)
        )
    return result


def _held_back(workers: int, rounds: int, console: Console) -> dict[str, Any]:
    """Compare a free coordinator with one that is stopped most of the time: uploads must not pile up in its memory."""
    config = _config(workers, rounds, model={"name": "mlp", "hidden": [SLOW_MODEL, SLOW_MODEL]})
    most, rates = [], []
    stops: list[float] = []
    for held in (False, True):
        with tempfile.TemporaryDirectory(prefix="cafe-bench-") as folder:
            with GrowthMeter(workers + 1, Path(folder)) as meter:
                over = threading.Event()
                holding = threading.Thread(target=_hold_back, args=(meter, over, stops))
                if held:
                    holding.start()
                try:
                    run_federation(config, load_data(config), Path(folder))
                finally:
                    over.set()
                    if held:
                        holding.join()
            summary = load_summary(Path(folder))
        most.append(meter.most("coordinator"))
        rates.append(summary.rounds_per_second)
    upload = summary.bytes.up // summary.rounds
    result = {"workers": workers, "rounds": rounds, "rounds_per_second": rates, "memory": most, "upload": upload}
    console.print(
        f"Uploads outrun the coordinator ({workers} workers, {rounds} rounds of {upload / 1e6:.1f} MB, frozen "
        f"parameters): left alone it does {rates[0]:.1f} rounds a second with {most[0] / 1e6:.0f} MB at most; stopped "
        f"{len(stops)} times for {HELD_SECONDS:g} s, {FREE_SECONDS:g} s apart, {rates[1]:.1f} with "
        f"{most[1] / 1e6:.0f} MB."
    )
    return result | {"stops": len(stops)}


def _hold_back(meter: GrowthMeter, over: threading.Event, stops: list[float]) -> None:
    """Stop the coordinator again and again until the run is over; note when."""
    while "coordinator" not in meter.pids:
        if over.wait(0.05):
            return
    pid = meter.pids["coordinator"]
    try:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            stops.append(time.monotonic())
            time.sleep(HELD_SECONDS)
            os.kill(pid, signal.SIGCONT)
            over.wait(FREE_SECONDS)
    except ProcessLookupError:  # it has ended
        pass


def _behind(rounds: int, console: Console) -> dict[str, Any]:
    """Let an attack fall behind: rounds wait for it on disk, and it sees them all in the end."""
    config = _config(4, rounds, attack={"name": "vfl.bench.load:Dawdler"})
    summary = run_once(config)
    queue, growth = summary.attack.queue, summary.coordinator_memory.growth or 0
    seen = int(str(summary.attack.notes[0]))
    result = {"rounds": rounds, "seen": seen, **as_json(queue), "memory_growth": growth}
    console.print(
        f"Rounds outrun the attack (4 workers, {rounds} rounds): {queue.spilled} waited on disk, {queue.longest} "
        f"at once at most; the coordinator's memory {growth / 1e6:+.1f} MB from the second tenth of the "
        f"rounds to the last; the attack saw {seen} of them, each once and in order."
    )
    return result


def _config(workers: int, rounds: int, **changes: Any) -> RunConfig:
    tree: dict[str, Any] = {
        "data": {"name": "digits", "samples": 400},
        "federation": {"workers": workers, "batch_size": 20, "rounds": rounds},
        "model": {"name": "mlp", "hidden": [8], "output": 4},
    }
    return parse_config(tree | changes, "cafe bench load")
