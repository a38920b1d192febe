"""`cafe run`: coordinator and workers as processes on this machine, from the first to the last without leftovers.

The processes come out of a fork server that has imported torch and gRPC once (and initialised neither), so that
starting the sixteenth worker costs milliseconds and not another import of torch.
"""

import contextlib
import hashlib
import os
import signal
import tempfile
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attacker.driver.conclude import Attacked
from attacker.driver.offline import attack_together
from attacker.start import start_attack
from server.main import ServeOptions, serve
from server.parameters import Parameters
from vfl.config import RunConfig
from vfl.config.places import PLACES
from vfl.datasets import Data, Facts
from vfl.datasets.slices import WorkerData, boxes_of, check_facts, write_slices
from vfl.device import resolve_device
from vfl.errors import InterruptedRunError
from vfl.files import remove, state_folder
from vfl.files.lock import FolderLock
from vfl.folder import held, transcript_of
from vfl.folder.summary import Defence, load_summary, save_summary
from vfl.folder.transcript import Transcript
from vfl.local.children import JOINED, Children, Outcome
from vfl.local.curious import curious_party
from vfl.local.stop import as_ctrl_c, honour
from vfl.observation import Setting
from vfl.referee.estimates import Estimates
from worker.defences import defences
from worker.defences.places import Defences
from worker.keys import Secret
from worker.main import defence_plan, work
from worker.session import WorkerOptions


def check(config: RunConfig, data: Data) -> None:
    """Find what is wrong with a run before any process starts."""
    samples = len(data.x)
    shares = config.topology.even_shares(samples, config.federation.batch_size)
    check_facts(config, Facts.of(data))
    for name in {config.device.attack, config.device.workers}:
        resolve_device(name)
    labels = known_labels(config, data)
    setting = Setting.of(config, boxes_of(data, config), data.classes, samples, shares=shares, labels=labels)
    chains = [[config.defence_of(worker, place) for place in PLACES] for worker in range(config.federation.workers)]
    for worker, chain in enumerate(chains):
        if chains.index(chain) == worker:  # each different one once: an accountant takes its time
            held = shares[worker] if shares else samples  # in a horizontal federation its own share
            plan = defence_plan(config, worker, held, most=setting.most_samples, common=Secret())
            Defences(config, plan).answers.check(data.classes)
    Parameters(setting, config.training)
    start_attack(config.attack, setting.seen_by(config))


@dataclass(frozen=True)
class LaunchOptions:
    """What the user wants of a run besides its config."""

    estimates: bool = False
    """Whether the attack's unfinished estimates are shown, and scored here for the user who watches."""
    resume: bool = False
    """Whether to go on from the last checkpoint in the run's folder."""
    fresh: bool = False
    """Whether to begin anew although a run in the folder could be resumed."""
    lock: FolderLock | None = None
    """On the run's folder, if it was taken before."""
    controls: Connection | None = None
    """Where the user's live page tells the coordinator to pause, to go on or to stop."""


def run_federation(config: RunConfig, data: Data, out: Path, options: LaunchOptions = LaunchOptions()) -> None:  # noqa: B008
    """Run a whole federation on this machine, or what is left of it; its results are in `out` when this returns."""
    check(config, data)
    if options.lock is None:
        with held(out, resume=options.resume, fresh=options.fresh) as lock:
            return run_federation(config, data, out, replace(options, lock=lock))
    # SIGTERM is what `timeout`, Docker and systemd send
    with as_ctrl_c(signal.SIGTERM), tempfile.TemporaryDirectory(prefix="cafe-slices-") as folder:
        slices = write_slices(config, data, Path(folder))
        children = Children(trains=not config.training.frozen)
        watching = Estimates(out, (data, config)) if options.estimates else contextlib.nullcontext()
        try:
            with watching:
                _start_and_wait(children, config, slices, out=out, data=data, wanted=options)
            if load_summary(out).complete:
                remove(_state(out))
            if data.tables:
                add_to_summary(out, tables=data.tables)
        except (KeyboardInterrupt, InterruptedRunError):
            children.interrupt()
            raise InterruptedRunError(f"stopped; what was done by then is in {out}") from None
        finally:
            children.end()


def known_labels(config: RunConfig, held: Data | WorkerData) -> tuple[int, ...] | None:
    """Return what the coordinator knows of the labels: all of them, if they are its own."""
    if not config.topology.labels_at_coordinator:
        return None
    assert held.y is not None
    return tuple(held.y.tolist())


def worker_threads(workers: int) -> int:
    """Return how many threads each of so many processes on this machine should use."""
    return max(1, (os.cpu_count() or 1) // workers)


def _start_and_wait(
    children: Children, config: RunConfig, slices: list[Path], *, out: Path, data: Data, wanted: LaunchOptions
) -> None:
    honour()
    threads = worker_threads(config.topology.parties)
    patience = config.federation.patience(0.0)  # a lost worker would not be started again
    alone = len(config.seats) == 1 and config.attack.name != "none"
    attack = children.start_attack() if alone else None
    ours = attack if config.attacks_at(None) else None
    options = ServeOptions(
        out=out,
        threads=threads,
        stop_signals=(signal.SIGTERM,),
        attack=ours,
        rejoin_timeout=patience,
        estimates=wanted.estimates,
        resume=wanted.resume,
        fresh=wanted.fresh,
        lock=wanted.lock,
        controls=wanted.controls,
        labels=known_labels(config, data),
    )
    coordinator = children.start("coordinator", _coordinate, config, options)
    for theirs in filter(None, (ours, wanted.controls)):
        theirs.close()  # they are the coordinator's now: the attack and the live page notice its end
    address = coordinator.receive()
    if isinstance(address, Outcome):
        if address.code:
            raise address.as_error()
        return  # all rounds had been done, and no worker was needed for the rest
    state = None if config.federation.checkpoint_every is None else _state(out)
    common = common_secret(config, state, wanted.resume)
    for worker, path in enumerate(slices):
        own = None if state is None else state / f"worker-{worker}"
        started = WorkerOptions(worker, address, threads=threads, state=own, common=common, rejoin_timeout=patience)
        own_attack = attack if config.attacks_at(worker) else None
        children.start(f"worker {worker}", take_part, config, Part(path, started, out, own_attack, wanted.estimates))
        if own_attack is not None:
            own_attack.close()
    honour()
    outcome = children.wait_for(coordinator)
    if outcome.code:
        raise children.root_cause(outcome).as_error()
    found = None if config.attacks_at(None) else _elsewhere(children, config, out)
    reports = children.defence_reports()[: config.federation.workers]
    add_to_summary(out, defence=list(map(Defence.model_validate, reports)))
    if found is not None:
        add_attack(out, found)


def _elsewhere(children: Children, config: RunConfig, out: Path) -> Attacked | None:
    """Return what the attack of a curious worker, the label holder or a coalition found; None if there is none."""
    if config.attack.name == "none":
        return None
    if len(config.seats) == 1:
        return children.attacked_by(children.child(f"worker {config.seats[0].worker}"))
    found = children.attacked_by(children.start("coalition", _conspire, config, out))
    if not config.transcript:
        for seat in config.seats:
            remove(transcript_of(out, config, seat.worker))
    return found


def add_attack(out: Path, found: Attacked) -> None:
    """Put what the attack of another party than the coordinator found into the run's summary."""
    seconds = load_summary(out).seconds
    total = (seconds.total or 0.0) + found.seconds
    add_to_summary(
        out, attack=found.attack, seconds=seconds.model_copy(update={"attack": found.seconds, "total": total})
    )


def _state(out: Path) -> Path:
    """Return where workers of a run that may be resumed keep secrets and counts: not in `out`, which the attack has."""
    return state_folder(f"runs/{hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:32]}")


def common_secret(config: RunConfig, state: Path | None, resume: bool) -> bytes | None:
    """Return what all workers draw from alike, where a defence wants that; the coordinator never has it."""
    sections = [section for worker in range(config.federation.workers) for section in config.defence_of(worker)]
    if not any(defences.build(section).needs_common for section in sections):
        return None
    secret = Secret(kept=None if state is None else state / "common" / "secret")
    if resume:
        secret.go_on()
    return secret.reveal()


def add_to_summary(out: Path, **parts: Any) -> None:
    """Add to a run's summary what only its launcher knows."""
    save_summary(out, load_summary(out).model_copy(update=parts))


def _coordinate(pipe: Connection, config: RunConfig, options: ServeOptions) -> None:
    serve(config, options, pipe.send, on_joined=lambda: pipe.send(JOINED))


@dataclass(frozen=True)
class Part:
    """What the process of one party is started with."""

    path: Path
    """The file with its slice, its labels, or both."""
    options: WorkerOptions
    out: Path | None = None
    """The folder for what its attack finds, if it is curious."""
    attack: Connection | None = None
    """To the attack's process."""
    estimates: bool = False
    """Whether the user wants to see the attack's unfinished estimates."""


def take_part(pipe: Connection, config: RunConfig, part: Part) -> None:
    """Be one party, in a process of its own; how its rounds ended, and what its attack found, go through the pipe."""
    options = part.options
    looks_on = curious_party(config, options.worker, part.out, pipe=part.attack, estimates=part.estimates)
    with looks_on as onlooker:
        pipe.send(work(config, WorkerData.load(part.path), options, onlooker))
        if onlooker is not None and onlooker.attacks:
            pipe.send(onlooker.attacked())


def _conspire(pipe: Connection, config: RunConfig, out: Path) -> None:
    """Be the attack of a coalition, in a process of its own: it reads what all members have written down."""
    recorded = [Transcript(transcript_of(out, config, seat.worker)) for seat in config.seats]
    pipe.send(attack_together(recorded, config, out))
