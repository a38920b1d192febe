"""`doctor`, `health`, `certs`, `slice`: what parties on several machines need before and while they run."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from vfl.cli.options import Changes, ConfigFile, Insecure, Out, Tls, check_addresses, check_worker
from vfl.config import load_config
from vfl.errors import UserError
from vfl.files import PRIVATE_FOLDER


def doctor(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The run's YAML file; without it only this machine.")
    ] = None,
    changes: Changes = None,
    *,
    worker: Annotated[
        int | None, typer.Option("--id", min=0, help="Check this worker's part; without it the coordinator's.")
    ] = None,
    coordinator: Annotated[str | None, typer.Option(help="With --id: where the coordinator is, HOST:PORT.")] = None,
    listen: Annotated[str | None, typer.Option(help="As for `cafe serve`, or with --id `cafe work`.")] = None,
    advertise: Annotated[str | None, typer.Option(help="With --id: as for `cafe work`.")] = None,
    data: Annotated[Path | None, typer.Option(help="With --id: the file with the worker's slice.")] = None,
    out: Out = None,
    tls: Tls = None,
    insecure: Insecure = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the other parties run `cafe doctor --wait` too, and compare.")
    ] = False,
) -> None:
    """Check this machine, and with FILE a party's set-up, before `cafe serve` or `cafe work` is called the same way."""
    from vfl.doctor.findings import Level, show_findings

    if file is None:
        _refuse_without_file(
            {
                "--set": changes,
                "--id": worker is not None,
                "--coordinator": coordinator,
                "--listen": listen,
                "--advertise": advertise,
                "--data": data,
                "--tls": tls,
                "--insecure": insecure,
                "--wait": wait,
            }
        )
        from vfl.doctor.main import examine_machine

        sheets = examine_machine(out or Path("runs"))
    else:
        config = load_config(file, changes)
        if worker is None and (coordinator or advertise or data):
            raise UserError("--coordinator, --advertise and --data are a worker's: give its --id too")
        if worker is not None and coordinator is None:
            raise UserError(f"--id {worker}: give --coordinator HOST:PORT too")
        if worker is not None:
            check_worker(worker, config)
        listen = listen or ("127.0.0.1:7000" if worker is None else "127.0.0.1:0")
        check_addresses({"--coordinator": coordinator, "--listen": listen, "--advertise": advertise})
        from vfl.doctor.main import examine_setup
        from vfl.doctor.party import Setup

        folder = out or Path("runs") / file.stem
        setup = Setup(config, listen, worker, coordinator or "", advertise, data, folder, tls, insecure, wait)
        sheets = examine_setup(setup)
    show_findings(sheets)
    if any(sheet.count(Level.FAILED) for sheet in sheets):
        raise typer.Exit(1)


def _refuse_without_file(options: Mapping[str, object]) -> None:
    given = [option for option, value in options.items() if value]
    if given:
        raise UserError(f"{', '.join(given)}: only for a run, so give its FILE too")


def health(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="A coordinator or a worker.")],
    tls: Tls = None,
    worker: Annotated[
        int | None, typer.Option("--id", min=0, help="With --tls: ask as this worker; without it, as the coordinator.")
    ] = None,
) -> None:
    """Ask a party whether it is serving: exit code 0 if it is, 1 if not."""
    check_addresses({"HOST:PORT": address})
    if worker is not None and tls is None:
        raise UserError(f"--id {worker}: says whose certificate to show, so give --tls DIR too")
    from vfl.net.health import check_serving
    from vfl.net.tls import COORDINATOR, load_identity, worker_role

    role = COORDINATOR if worker is None else worker_role(worker)
    check_serving(address, None if tls is None else load_identity(tls, role))
    print(f"{address} is serving")


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for the files; made if it is not there.")],
    *,
    workers: Annotated[int, typer.Option(min=1, help="How many workers the federation has.")] = 4,
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
    """Make TLS certificates for all parties, and the authority that signs them; those in DIR already are kept."""
    from vfl.net.certs import make_certificates, worker_names
    from vfl.net.tls import COORDINATOR, worker_role

    names = worker_names(worker_name or [])
    if coordinator_name:
        names[COORDINATOR] = coordinator_name
    if label_name:
        names[worker_role(workers)] = label_name
        workers += 1
    for path in make_certificates(folder, workers, names, days=days):
        print(path)
    print("each party needs ca.pem and its own .pem and .key; no other party needs ca.key: keep it", file=sys.stderr)


def cut(
    file: ConfigFile,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder for the files; slices/NAME by default.")] = None,
) -> None:
    """Cut the data set into one file for each worker, for `cafe work --data`: each then holds its own slice alone."""
    config = load_config(file, changes)
    folder = out or Path("slices") / file.stem
    from vfl.datasets.slices import load_data, write_slices
    from vfl.folder import make_folder

    make_folder(folder, PRIVATE_FOLDER)
    for path in write_slices(config, load_data(config), folder):
        print(path)
