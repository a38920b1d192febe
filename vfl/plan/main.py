"""The plan of a run: rounds, bytes, memory and time; what lies outside the measured range; what is too small."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vfl.config import RunConfig
from vfl.folder.words import step_words
from vfl.plan.machine import Machine, measure_floors, slower, this_machine
from vfl.plan.terms import PHASES, Fitted, load_fitted, memory_terms, predict, seconds_terms
from vfl.plan.workload import Workload, workload_of

LEFT_FREE = 2 << 30
"""Bytes of a disk that a run should leave."""

LIKE = 1.05
"""Numbers that differ by less than this factor count as measured."""


@dataclass(frozen=True)
class RunPlan:
    """What a run will take."""

    load: Workload
    machine: Machine
    core_seconds: dict[str, float]
    """By phase, of one core."""
    seconds: dict[str, float]
    """By phase, with this machine's cores to itself."""
    memory: dict[str, int]
    """Peak bytes by process; `worker` is one, the largest."""
    memory_total: int
    """All processes at once, libraries that they share counted once."""
    beyond: tuple[str, ...]
    """What is outside the measured range."""
    unknown: tuple[str, ...]
    """What there is no estimate of, and why."""
    warnings: tuple[str, ...]

    def tree(self) -> dict[str, Any]:
        """Return the plan as JSON has it."""
        load = self.load
        needed = load.needs.rounds if load.needs.enough else None
        return {
            "samples": load.samples,
            "test_samples": load.test_samples,
            "workers": load.workers,
            "batch_size": load.batch_size,
            "rounds": load.rounds,
            "attack": {
                "name": load.needs.attack,
                "method": load.needs.method,
                "rounds_needed": needed,
                "refusal": load.needs.refusal,
            },
            "bytes": asdict(load.traffic),
            "transcript_bytes": load.transcript_bytes,
            "waiting_bytes": load.waiting_bytes,
            "results_bytes": load.results_bytes,
            "memory": {**self.memory, "total": self.memory_total},
            "core_seconds": self.core_seconds,
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
            "machine": asdict(self.machine),
            "beyond_measured": list(self.beyond),
            "not_estimated": list(self.unknown),
            "warnings": list(self.warnings),
        }


def make_plan(config: RunConfig, folder: Path, machine: Machine | None = None, fitted: Fitted | None = None) -> RunPlan:
    """Plan a run whose results go to a folder, on this machine unless another is given."""
    fitted = fitted or load_fitted()
    machine = machine or this_machine(folder)
    load = workload_of(config)
    times = slower(measure_floors(), fitted.floors)
    wanted = seconds_terms(load)
    core = {
        phase: predict(fitted.seconds[phase], wanted[phase], times)
        for phase in PHASES
        if phase in wanted and phase in fitted.seconds
    }
    unknown = _unknown(load)
    if unknown:
        core = {phase: spent for phase, spent in core.items() if phase in ("federation", "scoring")}
    memory = {
        process: round(1e9 * predict(fitted.memory[process], terms))
        for process, terms in memory_terms(load).items()
        if process in fitted.memory and (process != "attack" or not unknown)
    }
    total = _total(memory, load.parties, fitted.shared)
    return RunPlan(
        load=load,
        machine=machine,
        core_seconds=core,
        seconds={phase: spent / _cores(phase, load, machine) for phase, spent in core.items()},
        memory=memory,
        memory_total=total,
        beyond=_beyond(load, fitted),
        unknown=unknown,
        warnings=_warnings(load, machine, total),
    )


def ranged(load: Workload) -> dict[str, float]:
    """Return the numbers of a workload that decide whether it is like one that was measured."""
    return {
        "samples": load.samples,
        "workers": load.workers,
        "batch size": load.batch_size,
        "rounds": load.rounds,
        "megabytes of parameters": load.model_bytes / 1e6,
        "megaflop a sample": load.flop / 1e6,
        "inputs of the attacked layer": max((layer.inputs for layer in load.layers), default=0),
    }


def _total(memory: dict[str, int], parties: int, shared: float) -> int:
    processes = 1 + parties + ("attack" in memory) + 1
    every = sum(size * (parties if process == "worker" else 1) for process, size in memory.items())
    return max(max(memory.values()), every - round(1e9 * shared) * (processes - 1))


def _cores(phase: str, load: Workload, machine: Machine) -> int:
    """Return how many cores a phase can use: the linear algebra of steps I and II and the scoring go on one."""
    most = {"federation": load.parties + 1, "step III": machine.cores}.get(phase, 1)
    return max(1, min(machine.cores, most))


def _beyond(load: Workload, fitted: Fitted) -> tuple[str, ...]:
    found = []
    for name, value in ranged(load).items():
        low, high = fitted.ranges.get(name, (value, value))
        if value > LIKE * high or 0 < LIKE * value < low:
            here, least, most = (f"{one:,.0f}" if one >= 100 else f"{one:.3g}" for one in (value, low, high))
            found.append(f"{name}: {here} here, {least} to {most} measured")
    return tuple(found)


def _unknown(load: Workload) -> tuple[str, ...]:
    needs = load.needs
    if needs.attack == "none":
        return ()
    if needs.refusal and not needs.rounds:
        return (f"the attack {needs.attack}: it cannot run here",)
    if needs.choice is None:
        return (f"the attack {needs.attack}: only exact was measured",)
    if not load.frozen:
        return ("the attack exact while parameters move: only frozen parameters were measured",)
    if needs.method == "rank_one":
        return ("the attack exact by rank one: its turns depend on the data",)
    return ()


def _warnings(load: Workload, machine: Machine, total: int) -> tuple[str, ...]:
    found = []
    needs = load.needs
    if needs.refusal:
        enough = f" With {needs.rounds:,} rounds {needs.attack} could run." if needs.rounds else ""
        found.append(f"The {needs.refusal}.{enough}")
    if total > machine.memory:
        found.append(
            f"The machine is too small: the run takes about {total / 1e9:.1f} GB of memory and "
            f"{machine.memory / 1e9:.1f} GB are free; use fewer samples, a smaller layer, or another machine."
        )
    if load.transcript_bytes + load.results_bytes > machine.disk - LEFT_FREE:
        leave = "leave transcript and federation.checkpoint_every out, or " if load.transcript_bytes else ""
        found.append(
            f"The disk is too small: the results take {load.results_bytes / 1e9:.1f} GB while they are written and the "
            f"transcript {load.transcript_bytes / 1e9:.1f} GB, and {machine.disk / 1e9:.1f} GB are free, of which "
            f"{LEFT_FREE / 1e9:.1f} should stay; {leave}choose another folder with --out."
        )
    elif load.waiting_bytes + load.results_bytes > machine.disk - LEFT_FREE:
        found.append(
            f"The disk does not hold all rounds: where no core is to spare for the attack, up to "
            f"{load.waiting_bytes / 1e9:.1f} GB of them wait for it, and {machine.disk / 1e9:.1f} GB are free; rounds "
            f"then wait in turn until it has caught up, which takes longer than is said above."
        )
    return tuple(found)


def show_plan(plan: RunPlan) -> None:
    """Print a plan: what is counted, what is estimated, what is doubtful, what is too small."""
    console, load = Console(highlight=False), plan.load
    table = Table.grid(padding=(0, 2))
    without = ", without the attack" if plan.unknown else ""
    rows = {
        "federation": f"{load.workers} workers, {load.samples:,} samples, {load.rounds:,} rounds of {load.batch_size}",
        "attack": _attack(plan),
        "on the wire": (
            f"{size_of(load.traffic.up)} up, {size_of(load.traffic.down)} down, "
            f"{size_of(load.traffic.peer)} between workers"
        ),
        "on disk": (
            f"{size_of(load.results_bytes)} of results, "
            + (f"{size_of(load.transcript_bytes)} of transcript" if load.transcript_bytes else "no transcript")
            + (f", up to {size_of(load.waiting_bytes)} that wait for the attack" if load.waiting_bytes else "")
        ),
        "memory": ", ".join(
            f"{'a worker' if process == 'worker' else process} {size_of(size)}" for process, size in plan.memory.items()
        ),
        "": f"{size_of(plan.memory_total)} in all on one machine" + without,
        **{step_words(phase): duration(spent) for phase, spent in plan.seconds.items() if phase != "federation"},
        "this machine": (
            f"{plan.machine.cores} cores, {size_of(plan.machine.memory)} of memory and {size_of(plan.machine.disk)} of "
            f"disk free"
        ),
    }
    for name, text in rows.items():
        table.add_row(f"  {name}", text)
        if name == "":
            table.add_row("  rounds", duration(plan.seconds.get("federation", 0.0)))
    table.add_row("  in all", duration(sum(plan.seconds.values())) + without)
    console.print(table)
    for text in plan.unknown:
        console.print(f"Not estimated: {text}.")
    if plan.beyond:
        console.print(f"Take times and memory as rough, as no run like this was measured: {'; '.join(plan.beyond)}.")
    for text in plan.warnings:
        console.print(f"Warning: {text}")


def size_of(count: int) -> str:
    """Return bytes as people read them."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:,.0f} {unit}"
    return f"{count} bytes"


def duration(seconds: float) -> str:
    """Return seconds as people read them."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.1f} hours" if seconds < 72 * 3600 else f"{seconds / 86400:,.1f} days"


def _attack(plan: RunPlan) -> str:
    needs = plan.load.needs
    if needs.attack == "none":
        return "none"
    if needs.refusal and not needs.rounds:
        return f"{needs.attack}, which cannot run here"
    how = f" by {needs.method.replace('_', ' ')}" if needs.method else ""
    return f"{needs.attack}{how}" + (f", needs {needs.rounds:,} rounds" if needs.enough else "")
