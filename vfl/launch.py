"""`cafe run`: coordinator and workers as processes on this machine, from the first to the last without leftovers.

The processes come out of a fork server that has imported torch and gRPC once (and initialised neither), so that
starting the sixteenth worker costs milliseconds and not another import of torch.
"""

import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any

from attacker.interface import start_attack
from server.aside import AttackProcess, needs_process
from server.disturbances import WorkerLeftError
from server.main import ServeOptions, serve
from server.parameters import Parameters
from vfl.config import RunConfig
from vfl.datasets import Data
from vfl.errors import CafeError, InterruptedRunError, UserError, from_words, in_words
from vfl.estimates import Estimates
from vfl.forkserver import context, end_with_parent, warm_up
from vfl.network import resolve_device
from vfl.observation import Setting
from vfl.results import load_summary, save_summary
from vfl.shares import sample_runs
from vfl.slices import WorkerData, boxes_of, write_slices
from vfl.stop import honour
from worker.defences import Chain, defences
from worker.main import defence_plan, work
from worker.rounds import Finished, WorkerOptions

GRACE_SECONDS = 15.0
JOINED = "all workers have joined"


@dataclass(frozen=True)
class Outcome:
    """How a process ended: 0, or an exit code with a sentence; `blames` names the worker that it says is at fault."""

    code: int = 0
    sentence: str = ""
    blames: int | None = None


def check(config: RunConfig, data: Data) -> None:
    """Find what is wrong with a run before any process starts."""
    samples = most = len(data.x)
    shares: tuple[int, ...] = ()
    if config.federation.horizontal:
        runs = sample_runs(samples, config.federation.workers, config.federation.batch_size)
        shares = tuple(run.stop - run.start for run in runs)
        most = max(shares)
    if config.federation.batch_size > samples:
        raise UserError(f"federation.batch_size: {config.federation.batch_size} is more than the {samples} samples")
    if config.training.evaluate_every and data.x_test is None:
        raise UserError("training.evaluate_every: there are no test samples to evaluate on (data.test_samples)")
    if data.classes < 2:
        raise UserError("data: all labels are the same; there is nothing to learn")
    resolve_device(config.device)
    chains = [config.defence_of(worker) for worker in range(config.federation.workers)]
    for worker, chain in enumerate(chains):
        if chains.index(chain) == worker:  # each different one once: an accountant takes its time
            Chain(chain, defence_plan(config, worker, shares[worker] if shares else samples, most=most))
    setting = Setting(
        model=config.model,
        boxes=tuple(boxes_of(data, config)),
        classes=data.classes,
        samples=samples,
        batch_size=config.federation.batch_size,
        schedule=config.federation.schedule,
        rounds=config.federation.planned_rounds(most),
        frozen=config.training.frozen,
        seed=config.seed,
        device=config.device,
        shares=shares,
    )
    Parameters(setting, config.training)
    start_attack(config.attack, setting)


def run_federation(
    config: RunConfig,
    data: Data,
    out: Path,
    quiet: bool = False,
    resume: bool = False,
    controls: Connection | None = None,
) -> None:
    """Run a whole federation on this machine, or what is left of it; its results are in `out` when this returns.

    Unless it is `quiet`, the attack shows unfinished estimates, which are scored here for whoever watches; over
    `controls` they may tell the coordinator to pause, to go on or to stop.
    """
    check(config, data)
    if resume:
        _check_counts(config)
    out.mkdir(parents=True, exist_ok=True)
    with _sigterm_as_ctrl_c(), tempfile.TemporaryDirectory(prefix="cafe-slices-") as folder:
        slices = write_slices(config, data, Path(folder))
        children = _Children()
        watching = contextlib.nullcontext() if quiet else Estimates(out, data)
        try:
            with watching:
                _start_and_wait(config, slices, out, quiet, children, resume, controls)
        except (KeyboardInterrupt, InterruptedRunError):
            children.interrupt()
            raise InterruptedRunError(f"stopped; what was done by then is in {out}") from None
        finally:
            children.end()


def _check_counts(config: RunConfig) -> None:
    """Refuse to start workers again whose defences need what they had counted."""
    for worker in range(config.federation.workers):
        for section in config.defence_of(worker):
            if defences.build(section).keeps_count:
                raise UserError(
                    f"--resume: what the defence {section.name} of worker {worker} had counted went with its process; "
                    f"start without --resume (a `cafe work` keeps its count while `cafe serve` is away)"
                )


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Clean up after SIGTERM as after Ctrl-C: it is what `timeout`, Docker and systemd send."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def worker_threads(workers: int) -> int:
    """Return how many threads each of so many processes on this machine should use."""
    return max(1, (os.cpu_count() or 1) // workers)


def _start_and_wait(
    config: RunConfig,
    slices: list[Path],
    out: Path,
    quiet: bool,
    children: "_Children",
    resume: bool,
    controls: Connection | None,
) -> None:
    honour()
    threads = worker_threads(config.federation.workers)
    patience = config.federation.patience(0.0)  # nobody would start a lost worker again
    attack = children.start_attack() if needs_process(config) else None
    options = ServeOptions(
        out=out,
        threads=threads,
        stop_signals=(signal.SIGTERM,),
        attack=attack,
        rejoin_timeout=patience,
        estimates=not quiet,
        resume=resume,
        controls=controls,
    )
    coordinator = children.start("coordinator", _coordinate, config, options)
    for theirs in filter(None, (attack, controls)):
        theirs.close()  # they are the coordinator's now: the attack ends with it, and whoever speaks to it hears of it
    address = coordinator.receive()
    if isinstance(address, Outcome):
        raise from_words(address.code, address.sentence)
    for worker, path in enumerate(slices):
        told = WorkerOptions(worker=worker, coordinator=address, threads=threads, rejoin_timeout=patience)
        children.start(f"worker {worker}", _work, config, path, told)
    honour()
    outcome = children.wait_for(coordinator)
    if outcome.code:
        cause = children.root_cause(outcome)
        raise from_words(cause.code, cause.sentence)
    save_summary(out, load_summary(out) | {"defence": children.defence_reports()})


def _coordinate(pipe: Connection, config: RunConfig, options: ServeOptions) -> None:
    serve(config, options, pipe.send, on_joined=lambda: pipe.send(JOINED))


def _work(pipe: Connection, config: RunConfig, path: Path, options: WorkerOptions) -> None:
    pipe.send(work(config, WorkerData.load(path), options))


def _child_main(target: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    """Run a role in its own process and send its outcome home; Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        target(pipe, *arguments)
        outcome = Outcome()
    except Exception as error:  # the parent must hear of bugs too, with the traceback on standard error
        if not isinstance(error, CafeError | OSError):
            import traceback

            traceback.print_exc()
        told = in_words(error)
        outcome = Outcome(told.exit_code, str(told), told.worker if isinstance(told, WorkerLeftError) else None)
    pipe.send(outcome)


class _Child:
    """A process with a pipe on which it sends values and, last of all, its outcome."""

    def __init__(self, name: str, process: ForkServerProcess, pipe: Connection) -> None:
        self.name, self.process, self._pipe = name, process, pipe
        self.outcome: Outcome | None = None
        self.finished: Finished | None = None

    def receive(self) -> Any:
        """Wait for the next value, or the outcome when the process ends without one."""
        try:
            value = self._pipe.recv()
        except EOFError:
            self.process.join(GRACE_SECONDS)
            value = Outcome(1, f"the {self.name} ended without a word (exit code {self.process.exitcode})")
        if isinstance(value, Outcome):
            self.outcome = value
        elif isinstance(value, Finished):
            self.finished = value
        return value

    @property
    def pipe(self) -> Connection:
        """Return the pipe, to wait on."""
        return self._pipe


class _Children:
    """All processes of a run."""

    def __init__(self) -> None:
        warm_up()
        self._context = context()
        self._all: list[_Child] = []
        self._attack: AttackProcess | None = None

    def start_attack(self) -> Connection:
        """Start the attack's process; return the pipe for the coordinator."""
        self._attack = AttackProcess()
        return self._attack.pipe

    def start(self, name: str, target: Callable[..., None], *arguments: Any) -> _Child:
        """Start a process."""
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_child_main, args=(target, theirs, *arguments), name=name, daemon=True)
        process.start()
        theirs.close()
        child = _Child(name, process, ours)
        self._all.append(child)
        return child

    def wait_for(self, coordinator: _Child) -> Outcome:
        """Wait for the coordinator's outcome; a worker that fails before all have joined ends the run at once."""
        joined = False
        while coordinator.outcome is None:
            silent = [child for child in self._all if child.outcome is None]
            for pipe in wait([child.pipe for child in silent]):
                child = next(child for child in silent if child.pipe is pipe)
                joined = child.receive() == JOINED or joined
                if not joined and child is not coordinator and child.outcome and child.outcome.code:
                    return Outcome(child.outcome.code, f"{child.name}: {child.outcome.sentence}")
        return coordinator.outcome

    def root_cause(self, outcome: Outcome) -> Outcome:
        """Put the words of the worker that is blamed beside the coordinator's."""
        if outcome.blames is None:
            return outcome
        child = next(child for child in self._all if child.name == f"worker {outcome.blames}")
        if child.outcome is None and child.pipe.poll(GRACE_SECONDS):
            child.receive()
        if child.outcome is None or not child.outcome.sentence:
            return outcome
        return Outcome(child.outcome.code or 1, f"{outcome.sentence}; it says: {child.outcome.sentence}")

    def defence_reports(self) -> list[dict[str, Any]]:
        """Return what the workers' defences say at the end; the coordinator never hears of it."""
        deadline = time.monotonic() + GRACE_SECONDS
        for child in self._all:
            while child.outcome is None and child.pipe.poll(max(0.0, deadline - time.monotonic())):
                child.receive()
        return [child.finished.defence for child in self._all if child.finished]

    def interrupt(self) -> None:
        """Ask the coordinator to stop; it tells the workers and writes down what is done."""
        for child in self._all[:1]:
            if child.process.is_alive():
                child.process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for child in self._all:
            child.process.join(max(0.0, deadline - time.monotonic()))

    def end(self) -> None:
        """Make sure that no process is left."""
        for child in self._all:
            child.process.join(2.0 if child.outcome else 0.0)
        for child in self._all:
            if child.process.is_alive():
                child.process.terminate()
        for child in self._all:
            child.process.join(3.0)
            if child.process.is_alive():
                child.process.kill()
                child.process.join()
        if self._attack is not None:
            self._attack.end()
