"""The `cafe` command."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from bench import NAMES
from vfl.config import RunConfig, apply_change, load_config, parse_config
from vfl.errors import CafeError, InterruptedRunError, UserError, in_words
from vfl.stop import interrupt, stopped

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from vfl.datasets import Data
    from vfl.registry import Registry

# gRPC's core logs what our errors say in a sentence, and nothing here forks after it is initialised; it reads both
# when it is first imported, below.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# torch takes more than a second to import, so each command imports what it needs when it runs.

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A red-team bench for vertical federated learning: what does the coordinator learn of everybody's data?",
)

ConfigFile = Annotated[Path, typer.Argument(metavar="FILE", help="The run's YAML file; see configs/.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the file, as in data.samples=60."),
]
Out = Annotated[Path | None, typer.Option("--out", help="The folder for the results; runs/NAME by default.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print summary.json on standard output, and nothing else there.")]
Tls = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A folder with ca.pem and this party's .pem and .key: mutual TLS.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Let plain text leave this machine.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the last checkpoint in --out (federation.checkpoint_every).")
]
Ui = Annotated[bool, typer.Option("--ui", help="Serve a page that shows the run as it goes on (docs/ui.md).")]
UiListen = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where the page is served; beyond this machine it wants a token.")
]
UI_LISTEN = "127.0.0.1:8080"

REJOIN_SECONDS = 60.0
"""How long `cafe serve` waits for a lost worker, and `cafe work` tries to come back, if the config does not say."""


@app.command()
def run(
    file: ConfigFile,
    changes: Changes = None,
    out: Out = None,
    quiet: Quiet = False,
    as_json: Json = False,
    resume: Resume = False,
    ui: Ui = False,
    ui_listen: UiListen = UI_LISTEN,
) -> None:
    """Run a whole federation on this machine: coordinator, workers, attack, scores."""
    config = load_config(file, changes)
    _address(ui_listen, "--ui-listen")
    folder = _folder(out, file)
    from vfl.forkserver import warm_up

    warm_up()
    from vfl.launch import run_federation
    from vfl.progress import Watch
    from vfl.slices import load_data

    with _page(ui, ui_listen, folder) as controls:
        data = load_data(config)
        with _reported(folder), Watch(folder, config.federation.workers, quiet) as watch:
            run_federation(config, data, folder, not (watch.live or ui), resume, controls)
            _finish(folder, config, data)
        _show(folder, quiet, as_json)


@app.command()
def plan(
    file: ConfigFile,
    changes: Changes = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON on standard output.")] = False,
    memory: Annotated[
        float | None, typer.Option(min=0, metavar="GB", help="Plan for a machine with so much memory free.")
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Plan for a machine with so many cores.")] = None,
) -> None:
    """Say what a run takes before anything runs: rounds, bytes, memory, time; warn if this machine is too small."""
    config = load_config(file, changes)
    import json
    from dataclasses import replace

    from vfl.plan.machine import this_machine
    from vfl.plan.main import make_plan
    from vfl.plan.show import show_plan

    folder = out or Path("runs") / file.stem
    machine = this_machine(folder)
    if memory is not None:
        machine = replace(machine, memory=round(memory * 1e9))
    found = make_plan(config, folder, replace(machine, cores=cores or machine.cores))
    if as_json:
        print(json.dumps(found.tree(), indent=1))
    else:
        show_plan(found)


@app.command()
def serve(
    file: ConfigFile,
    changes: Changes = None,
    out: Out = None,
    quiet: Quiet = False,
    as_json: Json = False,
    listen: Annotated[str, typer.Option(help="Where workers reach the coordinator, HOST:PORT.")] = "127.0.0.1:7000",
    referee: Annotated[
        bool, typer.Option("--referee", help="Simulation: load the data set afterwards and score the attack.")
    ] = False,
    labels: Annotated[
        Path | None,
        typer.Option(help="With federation.label_holder coordinator: a file with the labels, as `cafe slice` writes."),
    ] = None,
    label_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where workers then reach the coordinator's label holder.")
    ] = None,
    label_advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address they are told, if it is not --label-listen's.")
    ] = None,
    tls: Tls = None,
    insecure: Insecure = False,
    resume: Resume = False,
    ui: Ui = False,
    ui_listen: UiListen = UI_LISTEN,
) -> None:
    """Start the coordinator alone; workers join with `cafe work`."""
    config = load_config(file, changes)
    for name, address in (
        ("--listen", listen),
        ("--ui-listen", ui_listen),
        ("--label-listen", label_listen),
        ("--label-advertise", label_advertise),
    ):
        if address is not None:
            _address(address, name)
    from vfl.tls import COORDINATOR, identity_for

    identity = identity_for(tls, insecure, COORDINATOR, {"--listen": listen})
    folder = _folder(out, file)
    from server.main import ServeOptions
    from server.main import serve as conduct
    from vfl.estimates import Estimates
    from vfl.label_party import LabelOptions, label_party
    from vfl.progress import Watch
    from vfl.slices import load_data

    workers, patience = config.federation.workers, config.federation.patience(REJOIN_SECONDS)
    told = LabelOptions(labels, label_listen, label_advertise)
    with label_party(config, told, tls, insecure, patience) as party, _page(ui, ui_listen, folder) as controls:
        options = ServeOptions(
            folder,
            listen,
            tls=identity,
            rejoin_timeout=patience,
            resume=resume,
            workers_wait=patience > 0,
            estimates=ui,
            controls=controls,
            labels=party.labels if party else None,
            label_holder=party.start if party else None,
        )
        noted = Estimates(folder) if ui else contextlib.nullcontext()
        with _reported(folder), noted, Watch(folder, workers, quiet) as watch:
            conduct(
                config,
                options,
                lambda address: watch.say(f"coordinator listening on {address}, waiting for {workers} workers"),
            )
            _finish(folder, config, load_data(config) if referee else None)
        _show(folder, quiet, as_json)


@app.command()
def work(
    file: ConfigFile,
    worker: Annotated[int, typer.Option("--id", min=0, help="This worker's number, from 0.")],
    coordinator: Annotated[str, typer.Option(help="The coordinator, HOST:PORT.")],
    changes: Changes = None,
    listen: Annotated[
        str, typer.Option(help="Where peers reach this worker, HOST:PORT; port 0 takes a free one.")
    ] = "127.0.0.1:0",
    advertise: Annotated[str | None, typer.Option(help="The address peers are told, if it is not --listen's.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="A file with this worker's own slice, or its own table (.csv, .parquet), whose rows are then aligned "
            "with the others'; without it the config's data set is cut."
        ),
    ] = None,
    align_key: Annotated[
        Path | None, typer.Option(help="With a table: a file with the secret that all workers share, and nobody else.")
    ] = None,
    psi: Annotated[
        bool, typer.Option("--psi", help="With a table and two workers: private set intersection instead of a key.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for computing; all cores by default.")] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="A file with this worker's secret, which its defences draw from.")
    ] = None,
    tls: Tls = None,
    insecure: Insecure = False,
) -> None:
    """Start one worker; it waits for its coordinator and takes part in one run."""
    config = load_config(file, changes)
    _worker(worker, config)
    for name, address in (("--coordinator", coordinator), ("--listen", listen), ("--advertise", advertise)):
        if address is not None:
            _address(address, name)
    from vfl.tls import identity_for, worker_role

    identity = identity_for(tls, insecure, worker_role(worker), {"--coordinator": coordinator, "--listen": listen})
    from vfl.show import defence_lines
    from worker.aligning import hold
    from worker.main import work as take_part
    from worker.rounds import WorkerOptions

    patience = config.federation.patience(REJOIN_SECONDS)
    options = WorkerOptions(worker, coordinator, listen, advertise, threads, key_file, identity, insecure, patience)
    finished = take_part(config, hold(config, data, align_key, options, psi), options)
    print(f"worker {worker}: done after {finished.rounds} rounds", file=sys.stderr)
    for line in defence_lines([finished.defence]):
        print(line, file=sys.stderr)


@app.command()
def doctor(
    file: ConfigFile,
    changes: Changes = None,
    worker: Annotated[
        int | None, typer.Option("--id", min=0, help="A worker's number; without it the coordinator.")
    ] = None,
    coordinator: Annotated[str | None, typer.Option(help="A worker's: the coordinator, HOST:PORT.")] = None,
    listen: Annotated[str | None, typer.Option(help="As for `cafe serve` or `cafe work`, with their defaults.")] = None,
    advertise: Annotated[str | None, typer.Option(help="The label holder's, as for `cafe work`.")] = None,
    data: Annotated[Path | None, typer.Option(help="A worker's: the file with its slice.")] = None,
    out: Out = None,
    tls: Tls = None,
    insecure: Insecure = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the other parties' doctors, and compare with them.")
    ] = False,
) -> None:
    """Check a set-up before a run, with the options that `cafe serve` or `cafe work` will be given."""
    config = load_config(file, changes)
    if worker is None and (coordinator or advertise or data):
        raise UserError("--coordinator, --advertise and --data are a worker's: give its --id too")
    if worker is not None and coordinator is None:
        raise UserError(f"--id {worker}: give --coordinator HOST:PORT too")
    if worker is not None:
        _worker(worker, config)
    listen = listen or ("127.0.0.1:7000" if worker is None else "127.0.0.1:0")
    for name, address in (("--coordinator", coordinator), ("--listen", listen), ("--advertise", advertise)):
        if address is not None:
            _address(address, name)
    from vfl.doctor.findings import Level, show
    from vfl.doctor.main import examine_setup
    from vfl.doctor.setup import Setup

    folder = out or Path("runs") / file.stem
    setup = Setup(config, listen, worker, coordinator or "", advertise, data, folder, tls, insecure, wait)
    sheets = examine_setup(setup)
    show(sheets)
    if any(sheet.count(Level.FAILED) for sheet in sheets):
        raise typer.Exit(1)


@app.command()
def health(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="A coordinator or a worker.")],
    tls: Tls = None,
    worker: Annotated[
        int | None, typer.Option("--id", min=0, help="With --tls: ask as this worker; without it, as the coordinator.")
    ] = None,
) -> None:
    """Ask a party whether it is serving: exit code 0 if it is, 1 if not."""
    _address(address, "HOST:PORT")
    if worker is not None and tls is None:
        raise UserError(f"--id {worker}: says whose certificate to show, so give --tls DIR too")
    from vfl.health import check_serving
    from vfl.tls import COORDINATOR, load_identity, worker_role

    role = COORDINATOR if worker is None else worker_role(worker)
    check_serving(address, None if tls is None else load_identity(tls, role))
    print(f"{address} is serving")


@app.command()
def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for the files; made if it is not there.")],
    workers: Annotated[int, typer.Option(min=1, help="How many workers the federation has.")],
    coordinator_name: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A name or address of the coordinator; may be repeated.")
    ] = None,
    worker_name: Annotated[
        list[str] | None, typer.Option(metavar="M=HOST", help="A name or address of worker M; may be repeated.")
    ] = None,
    label_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="A name or address of the coordinator's label holder (federation.label_holder coordinator): it gets a "
            "certificate too, as worker number --workers; may be repeated.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificates are valid.")] = 365,
) -> None:
    """Make TLS certificates: an authority and one a role; what is in DIR already is kept, and more may be added."""
    from vfl.certs import make_certificates, worker_names
    from vfl.tls import COORDINATOR, worker_role

    names = worker_names(worker_name or [])
    if coordinator_name:
        names[COORDINATOR] = coordinator_name
    if label_name:
        names[worker_role(workers)] = label_name
        workers += 1
    for path in make_certificates(folder, workers, names, days):
        print(path)
    print("each party needs ca.pem and its own .pem and .key; nobody else needs ca.key: keep it", file=sys.stderr)


@app.command("slice")
def cut(
    file: ConfigFile,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder for the files; slices/NAME by default.")] = None,
) -> None:
    """Cut the data set into one file a worker, for `cafe work --data`: each party then holds its own slice only."""
    config = load_config(file, changes)
    folder = _folder(out or Path("slices") / file.stem, file)
    from vfl.slices import load_data, write_slices

    for path in write_slices(config, load_data(config), folder):
        print(path)


@app.command()
def attack(
    transcript: Annotated[Path, typer.Argument(metavar="TRANSCRIPT", help="The transcript/ folder of a run.")],
    name: Annotated[str | None, typer.Option("--attack", help="The attack; the recorded run's by default.")] = None,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for the results; beside the transcript by default.")
    ] = None,
    score: Annotated[bool, typer.Option(help="Load the recorded config's data set and score the result.")] = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run an attack offline, on what a coordinator recorded."""
    from server.offline import attack_transcript
    from vfl.progress import Watch
    from vfl.transcript import Transcript
    from vfl.trust import refuse_imports

    recorded = Transcript(transcript)
    tree = recorded.config.model_dump(mode="json")
    if name is not None:
        tree["attack"] = {"name": name}
    for change in changes or []:
        apply_change(tree, change)
    config = parse_config(tree, "the recorded config")
    sections = {"model": recorded.config.model.model_dump(mode="json"), "data": tree["data"], "attack": tree["attack"]}
    refuse_imports(sections, [name or "", *(change.partition("=")[2] for change in changes or [])], transcript)
    if out is not None and (out / "transcript").resolve() == transcript.resolve():
        raise UserError(f"--out {out}: is the recorded run's own folder; choose another")
    folder = _folder(out or transcript.resolve().parent / f"attack-{config.attack.name.replace(':', '.')}", transcript)
    with _reported(folder), Watch(folder, 0, quiet) as watch:
        attack_transcript(recorded, config, folder)
        _finish(folder, config, _truth(config, watch.say) if score else None)
    _show(folder, quiet, as_json)


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The sweep's YAML file; see experiments/.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the base config, as in data.samples=60."),
    ] = None,
    out: Out = None,
    size: Annotated[
        str | None, typer.Option(help="One of the file's sizes, such as smoke, small or paper; small by default.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells at a time; cores // (workers + 1) by default.")] = None,
    engine: Annotated[str, typer.Option(help="Where cells run: local or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="ray: the cluster, HOST:PORT or auto; without it one on this machine.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run many federations, a grid of changes to one config, and put all results in one table."""
    from sweep.plan import load_plan

    plan = load_plan(file, changes, size)
    folder = _folder(out or Path("runs") / plan.name, file)
    from sweep.check import check_cells
    from sweep.main import choose_engine, run_sweep

    chosen = choose_engine(engine, jobs, address)
    check_cells(plan, file)
    run_sweep(plan, folder, chosen, quiet)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or of a sweep.")],
) -> None:
    """Write DIR/report.html again: everything that a run or a sweep showed, in one file that needs no network."""
    from report.main import write_report

    print(write_report(folder))


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")],
    to: Annotated[str, typer.Option(help="csv or mlflow.")] = "csv",
    out: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="csv: the folder, DIR/csv by default; mlflow: the tracking URI, MLflow's own by default.",
        ),
    ] = None,
) -> None:
    """Give a finished run to other programs: its curves, scores and images as CSV files, or as a run in MLflow."""
    if to not in ("csv", "mlflow"):
        raise UserError(f"--to {to}: choose csv or mlflow")
    from vfl.export import export_csv, export_mlflow

    if to == "mlflow":
        print(export_mlflow(folder, out))
    else:
        for path in export_csv(folder, Path(out) if out else folder / "csv"):
            print(path)


@app.command("ui")
def show_page(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, finished or not.")],
    ui_listen: UiListen = UI_LISTEN,
) -> None:
    """Serve the page of a run's folder, until Ctrl-C."""
    _address(ui_listen, "--ui-listen")
    from ui.main import open_place, show_folder

    show_folder(folder, open_place(ui_listen))


@app.command()
def results(
    add: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="A sweep's folder whose results are kept; may be repeated.")
    ] = None,
    experiments: Annotated[Path, typer.Option(help="The folder of the sweeps' files.")] = Path("experiments/paper"),
    kept: Annotated[Path, typer.Option(help="The folder where results are kept.")] = Path("experiments/results"),
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("RESULTS.md"),
) -> None:
    """Write RESULTS.md: the paper's tables beside ours, from the results that are kept."""
    from sweep.results import keep_results, write_page

    for folder in add or []:
        print(f"kept as {keep_results(folder, experiments, kept)}")
    write_page(experiments, kept, page)
    print(f"{page} is written")


@app.command("list")
def list_plugins(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help="attacks, defences, datasets or models; all without it.")
    ] = None,
) -> None:
    """Show what can be named in a config: every plug-in, or those of a kind with their options."""
    from attacker.interface import attacks
    from vfl.catalogue import catalogue
    from vfl.datasets import datasets
    from vfl.models import models
    from worker.defences import defences

    kinds: dict[str, Registry[Any]] = {"attacks": attacks, "defences": defences, "datasets": datasets, "models": models}
    if kind is not None and kind not in kinds:
        raise UserError(f"cafe list {kind}: choose one of {', '.join(kinds)}")
    for name in [kind] if kind else kinds:
        if kind is None:
            print(f"{name}:")
        for line in catalogue(kinds[name], options=kind is not None):
            print(line)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(NAMES)}.")],
    out: Annotated[Path | None, typer.Option(help="Also write the numbers to this JSON file.")] = None,
    short: Annotated[bool, typer.Option("--short", help="A few rounds only, to see that it works.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="attack: an .npz file of images instead of the photographs.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="attack: how many epochs it observes.")] = 4,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="OLD.json NEW.json", help="all: print two files of --out beside each other."),
    ] = None,
) -> None:
    """Measure: all hot paths, the wire, training, attacks, gradient matching, defences, faults, load, or scale."""
    if out is not None and not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    if name not in NAMES:
        raise UserError(f"cafe bench {name}: choose one of {', '.join(NAMES)}")
    measure = getattr(import_module(f"bench.{name}"), f"bench_{name}")
    if name == "attack":
        measure(data, epochs, out, short)
    elif name == "all":
        measure(out, short, compare)
    else:
        measure(out, short)


def main() -> None:
    """Run the command; bad input ends with one sentence and exit code 2, never with a traceback."""
    signal.signal(signal.SIGINT, interrupt)
    try:
        code = app(standalone_mode=False)
    except CafeError as error:
        _end(error)
    except OSError as error:
        _end(in_words(error))
    except BaseException as error:
        if stopped():  # whatever came of it: an import cut in two fails in the oddest ways
            _end(InterruptedRunError("stopped"))
        usage = getattr(error, "format_message", None)  # a click error: a wrong option or argument
        if usage is None:
            raise
        _end(UserError(f"{usage()} Try cafe --help."))
    if stopped():
        _end(InterruptedRunError("stopped"))
    raise SystemExit(code or 0)


def _end(error: CafeError) -> NoReturn:
    # A Ctrl-C that met Python inside an `exec` (dataclasses, namedtuples: any import) leaves a mark there that makes
    # the interpreter end by the signal instead of our exit code; the next `exec` wipes it out.
    exec("")  # of nothing  # nosec B102
    print(f"cafe: {error}", file=sys.stderr)
    raise SystemExit(error.exit_code)


def _folder(out: Path | None, file: Path) -> Path:
    folder = out or Path("runs") / file.stem
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: the folder cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"--out {folder}: the folder cannot be written to")
    return folder


def _worker(worker: int, config: RunConfig) -> None:
    if worker >= config.federation.workers:
        raise UserError(f"--id {worker}: the workers of this federation are 0 to {config.federation.workers - 1}")


def _address(text: str, option: str) -> None:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"{option} {text}: expected HOST:PORT, for example 192.0.2.10:7000")


def _truth(config: RunConfig, say: Callable[[str], None]) -> "Data | None":
    from vfl.slices import load_data

    try:
        return load_data(config)
    except UserError as error:
        say(f"no scores, as the ground truth cannot be loaded: {error}")
        return None


def _page(ui: bool, listen: str, folder: Path) -> "contextlib.AbstractContextManager[Connection | None]":
    """Return the live page of a run, if one is asked for; inside, where the coordinator hears of it."""
    if not ui:
        return contextlib.nullcontext()
    from ui.main import live_page

    return live_page(folder, listen)


def _finish(folder: Path, config: RunConfig, data: "Data | None") -> None:
    """Score a run where there is the truth, and close its journal."""
    from vfl.journal import Journal
    from vfl.referee import score_run

    journal = Journal(folder)
    try:
        if data is not None:
            journal.state("scoring")
            score_run(folder, config, data)
    except Exception as error:
        journal.state("ended", str(in_words(error)))
        raise
    journal.finish()


@contextlib.contextmanager
def _reported(folder: Path) -> Iterator[None]:
    """Write the report of what a run leaves in its folder, also if it fails."""
    before = _when_written(folder)
    try:
        yield
    finally:
        if _when_written(folder) != before:
            from report.main import report_if_possible

            report_if_possible(folder)


def _when_written(folder: Path) -> int | None:
    path = folder / "summary.json"
    return path.stat().st_mtime_ns if path.exists() else None


def _show(folder: Path, quiet: bool, as_json: bool) -> None:
    from vfl.results import load_summary
    from vfl.show import show_summary

    if as_json:
        print((folder / "summary.json").read_text(encoding="utf-8"), end="")
    elif not quiet:
        show_summary(load_summary(folder), folder)


if __name__ == "__main__":
    main()
