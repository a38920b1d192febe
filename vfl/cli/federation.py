"""`run`, `plan`, `serve`, `work`: a federation on this machine, what it takes, and its parties one by one."""

import contextlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vfl.cli import options as shared
from vfl.cli.ending import finish, reported, show
from vfl.config import load_config
from vfl.errors import UserError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from vfl.local.curious import CuriousParty

Referee = Annotated[
    bool, typer.Option("--referee", help="Simulation: load the data set afterwards and score the attack.")
]
LabelsFile = Annotated[
    Path | None,
    typer.Option(help="With federation.label_holder coordinator: a file with the labels, as `cafe slice` writes."),
]
LabelListen = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where workers then reach the coordinator's label holder.")
]
LabelAdvertise = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The address that they use, if it is not --label-listen's.")
]
PeerListen = Annotated[str, typer.Option(help="Where peers reach this worker, HOST:PORT; port 0 takes a free one.")]
Advertise = Annotated[str | None, typer.Option(help="The address that peers use, if it is not --listen's.")]
WorkerFile = Annotated[
    Path | None,
    typer.Option(
        help="A file with this worker's own slice, or its own table (.csv, .tsv, .parquet, .npz), whose rows are "
        "then aligned with the others'; without it the config's data set is cut."
    ),
]
AlignKey = Annotated[
    Path | None, typer.Option(help="With a table: a file with the secret that all workers share, and no other party.")
]
Psi = Annotated[
    bool, typer.Option("--psi", help="With a table and two workers: private set intersection instead of a key.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads for computing; all cores by default.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="A file with the secret that this worker's defences draw from; without it the worker makes one."),
]
AdversaryOut = Annotated[
    Path | None,
    typer.Option(help="The folder for what a curious worker's attack finds (adversary); below runs/ by default."),
]
StateFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="A folder of this worker's alone: its secret is kept there, and a restart goes on with it."
    ),
]


def run(
    file: shared.ConfigFile,
    changes: shared.Changes = None,
    out: shared.Out = None,
    *,
    quiet: shared.Quiet = False,
    as_json: shared.Json = False,
    resume: shared.Resume = False,
    fresh: shared.Fresh = False,
    ui: shared.Ui = False,
    ui_listen: shared.UiListen = shared.UI_LISTEN,
) -> None:
    """Run a federation on this machine: coordinator and workers train, the attack tries, the referee scores it."""
    config = load_config(file, changes)
    shared.check_addresses({"--ui-listen": ui_listen})
    folder = out or Path("runs") / file.stem
    from vfl.folder import held
    from vfl.forkserver import warm_up

    warm_up(trains=not config.training.frozen)
    from vfl.cli.progress import RunProgress
    from vfl.datasets.slices import load_data
    from vfl.local.launch import LaunchOptions, run_federation

    with held(folder, resume=resume, fresh=fresh) as lock, _page(ui, ui_listen, folder) as controls:
        data = load_data(config)
        with reported(folder), RunProgress(folder, config.federation.workers, quiet) as watch:
            for doubt in data.doubts:
                watch.say(f"Warning: {doubt}")
            options = LaunchOptions(
                estimates=watch.live or ui, resume=resume, fresh=fresh, lock=lock, controls=controls
            )
            run_federation(config, data, folder, options)
            finish(folder, config, data)
        show(folder, quiet, as_json)


def demo(
    changes: shared.Changes = None,
    out: Annotated[Path, typer.Option("--out", help="The folder for the results.")] = Path("runs/demo"),
    *,
    quiet: shared.Quiet = False,
    as_json: shared.Json = False,
    fresh: shared.Fresh = False,
    ui: shared.Ui = False,
    ui_listen: shared.UiListen = shared.UI_LISTEN,
) -> None:
    """See it happen: four workers train on two photographs, and the coordinator rebuilds them, in about a minute."""
    config = Path("configs/demo.yaml")
    run(config, changes, out, quiet=quiet, as_json=as_json, fresh=fresh, ui=ui, ui_listen=ui_listen)


def plan(
    file: shared.ConfigFile,
    changes: shared.Changes = None,
    out: shared.Out = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON on standard output.")] = False,
    memory: Annotated[
        float | None, typer.Option(min=0, metavar="GB", help="Plan for a machine with so much memory free.")
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Plan for a machine with so many cores.")] = None,
) -> None:
    """Say what a run would take: rounds, bytes, memory, time; warn if this machine is too small."""
    config = load_config(file, changes)
    if memory is not None and not math.isfinite(memory):
        raise UserError(f"--memory {memory}: expected so many gigabytes")
    import json
    from dataclasses import replace

    from vfl.plan.machine import this_machine
    from vfl.plan.main import make_plan, show_plan

    folder = out or Path("runs") / file.stem
    machine = this_machine(folder)
    if memory is not None:
        machine = replace(machine, memory=round(memory * 1e9))
    found = make_plan(config, folder, replace(machine, cores=cores or machine.cores))
    if as_json:
        print(json.dumps(found.tree(), indent=1))
    else:
        show_plan(found)


def serve(
    file: shared.ConfigFile,
    changes: shared.Changes = None,
    out: shared.Out = None,
    *,
    quiet: shared.Quiet = False,
    as_json: shared.Json = False,
    listen: Annotated[str, typer.Option(help="Where workers reach the coordinator, HOST:PORT.")] = "127.0.0.1:7000",
    referee: Referee = False,
    labels: LabelsFile = None,
    label_listen: LabelListen = None,
    label_advertise: LabelAdvertise = None,
    tls: shared.Tls = None,
    insecure: shared.Insecure = False,
    resume: shared.Resume = False,
    fresh: shared.Fresh = False,
    ui: shared.Ui = False,
    ui_listen: shared.UiListen = shared.UI_LISTEN,
) -> None:
    """Start the coordinator alone; workers join with `cafe work`."""
    config = load_config(file, changes)
    shared.check_addresses({"--listen": listen, "--ui-listen": ui_listen})
    shared.check_addresses({"--label-listen": label_listen, "--label-advertise": label_advertise})
    from vfl.net.tls import COORDINATOR, identity_for

    identity = identity_for(tls, insecure, COORDINATOR, {"--listen": listen})
    folder = out or Path("runs") / file.stem
    from server import main as coordinator
    from vfl.cli.progress import RunProgress
    from vfl.datasets.slices import load_data
    from vfl.folder import held
    from vfl.local.label_party import LabelOptions, label_party
    from vfl.referee.estimates import Estimates

    workers, patience = config.federation.workers, config.federation.patience(shared.REJOIN_SECONDS)
    own = LabelOptions(labels, label_listen, label_advertise)
    with (
        held(folder, resume=resume, fresh=fresh) as lock,
        label_party(config, own, tls=tls, insecure=insecure, patience=patience) as party,
        _page(ui, ui_listen, folder) as controls,
    ):
        options = coordinator.ServeOptions(
            folder,
            listen,
            tls=identity,
            rejoin_timeout=patience,
            resume=resume,
            fresh=fresh,
            lock=lock,
            workers_wait=patience > 0,
            estimates=ui,
            controls=controls,
            labels=party.labels if party else None,
            label_holder=party.start if party else None,
        )
        noted, awaited = Estimates(folder) if ui else contextlib.nullcontext(), f"waiting for {workers} workers"
        with reported(folder), noted, RunProgress(folder, workers, quiet) as watch:
            coordinator.serve(config, options, lambda at: watch.say(f"coordinator listening on {at}, {awaited}"))
            finish(folder, config, load_data(config) if referee else None)
        show(folder, quiet, as_json)


def work(
    file: shared.ConfigFile,
    *,
    worker: Annotated[int, typer.Option("--id", min=0, help="This worker's number, from 0.")],
    coordinator: Annotated[str, typer.Option(help="The coordinator, HOST:PORT.")],
    changes: shared.Changes = None,
    listen: PeerListen = "127.0.0.1:0",
    advertise: Advertise = None,
    data: WorkerFile = None,
    align_key: AlignKey = None,
    psi: Psi = False,
    threads: Threads = None,
    key_file: KeyFile = None,
    state: StateFolder = None,
    tls: shared.Tls = None,
    insecure: shared.Insecure = False,
    out: AdversaryOut = None,
    referee: Referee = False,
    ui: shared.Ui = False,
    ui_listen: shared.UiListen = shared.UI_LISTEN,
) -> None:
    """Start one worker; it waits for its coordinator and takes part in one run."""
    config = load_config(file, changes)
    shared.check_worker(worker, config)
    seat = config.curious_seat(worker)
    if seat is None and (out is not None or referee or ui):
        raise UserError(f"--out, --referee and --ui: worker {worker} is not curious (adversary), and has no attack")
    addresses = {"--coordinator": coordinator, "--listen": listen, "--advertise": advertise, "--ui-listen": ui_listen}
    shared.check_addresses(addresses)
    from vfl.net.tls import identity_for, worker_role

    identity = identity_for(tls, insecure, worker_role(worker), {"--coordinator": coordinator, "--listen": listen})
    from vfl.files import state_folder
    from vfl.local.curious import curious_party
    from worker.alignment import hold
    from worker.main import work as take_part
    from worker.session import WorkerOptions

    patience = config.federation.patience(shared.REJOIN_SECONDS)
    options = WorkerOptions(
        worker,
        coordinator,
        listen,
        advertise,
        threads,
        key_file,
        state=state or state_folder(f"worker-{worker}-of-{coordinator.replace(':', '_')}"),
        tls=identity,
        insecure=insecure,
        rejoin_timeout=patience,
    )
    folder = None if seat is None else out or Path("runs") / f"{file.stem}-{seat.slug}"
    page = _party_page(ui, ui_listen, folder)
    with page, curious_party(config, worker, folder, estimates=ui, alone=True) as onlooker:
        finished = take_part(config, hold(config, data, options, key_file=align_key, psi=psi), options, onlooker)
        print(f"worker {worker}: done after {finished.rounds} rounds", file=sys.stderr)
        _say_defence(finished.defence)
        if onlooker is not None:
            _conclude_alone(onlooker, finished.rounds, referee)


def _say_defence(defence: object) -> None:
    """Say what the worker's defences did."""
    from vfl.folder.summary import Defence
    from vfl.folder.words import defence_lines

    for line in defence_lines([Defence.model_validate(defence)]):
        print(line, file=sys.stderr)


@contextlib.contextmanager
def _party_page(ui: bool, listen: str, folder: Path | None) -> Iterator[None]:
    """Serve the live page of a curious party's own folder, if one is asked for; it has no hold on the run."""
    from vfl.folder import make_folder
    from vfl.referee.estimates import Estimates

    if not ui or folder is None:
        yield
        return
    make_folder(folder)
    with _page(ui, listen, folder, controls=False), Estimates(folder):
        yield


def _conclude_alone(onlooker: "CuriousParty", rounds: int, referee: bool) -> None:
    """Let a curious worker's attack recover in that worker's own folder, and show what it found."""
    kept = onlooker.transcript
    if not onlooker.attacks:
        together = "; `cafe attack` puts it together with those of the others" if len(onlooker.config.seats) > 1 else ""
        print(f"what it saw is in {kept}{together}" if kept else "nothing of what it saw is kept", file=sys.stderr)
        return
    from vfl.datasets.slices import load_data

    with reported(onlooker.out):
        onlooker.conclude(rounds)
        finish(onlooker.out, onlooker.config, load_data(onlooker.config) if referee else None)
    show(onlooker.out, quiet=False, as_json=False)


def _page(
    ui: bool, listen: str, folder: Path, *, controls: bool = True
) -> "contextlib.AbstractContextManager[Connection | None]":
    """Return the live page of a run, if one is asked for; inside, where the coordinator hears of it."""
    if not ui:
        return contextlib.nullcontext()
    from vfl.ui import check_installed

    check_installed()
    from vfl.ui.main import live_page

    return live_page(folder, listen, controls=controls)
