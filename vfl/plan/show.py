"""A plan on the terminal."""

from rich.console import Console
from rich.table import Table

from vfl.plan.main import RunPlan


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
        **{phase: duration(seconds) for phase, seconds in plan.seconds.items() if phase != "federation"},
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
        console.print("Beyond what was measured, so times and memory are extrapolated: " + "; ".join(plan.beyond) + ".")
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
    how = f" by {needs.method.replace('_', ' ')}" if needs.method else ""
    return f"{needs.attack}{how}" + (f", needs {needs.rounds:,} rounds" if needs.enough else "")
