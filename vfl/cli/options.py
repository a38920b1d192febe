"""Options that several commands share, and how they are checked."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from vfl.config import RunConfig
from vfl.errors import UserError

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
    str | None, typer.Option(metavar="HOST:PORT", help="The address they are told, if it is not --label-listen's.")
]
Advertise = Annotated[str | None, typer.Option(help="The address peers are told, if it is not --listen's.")]
WorkerFile = Annotated[
    Path | None,
    typer.Option(
        help="A file with this worker's own slice, or its own table (.csv, .tsv, .parquet, .npz), whose rows are "
        "then aligned with the others'; without it the config's data set is cut."
    ),
]
AlignKey = Annotated[
    Path | None, typer.Option(help="With a table: a file with the secret that all workers share, and nobody else.")
]
Psi = Annotated[
    bool, typer.Option("--psi", help="With a table and two workers: private set intersection instead of a key.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads for computing; all cores by default.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="A file with this worker's secret, which its defences draw from; it draws its own without."),
]
StateFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="A folder of this worker's alone: its secret is kept there, and a restart goes on with it."
    ),
]
UI_LISTEN = "127.0.0.1:8080"

REJOIN_SECONDS = 60.0
"""How long `cafe serve` waits for a lost worker, and `cafe work` tries to come back, if the config does not say."""


def results_folder(out: Path | None, file: Path, mode: int = 0o777) -> Path:
    """Return the folder for results, which is named after the file by default; it is made, and can be written to."""
    folder = out or Path("runs") / file.stem
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: the folder cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"--out {folder}: the folder cannot be written to")
    return folder


def no_link(folder: Path) -> Path:
    """Return a folder in a run's, unless it is a link: the run may be another user's, and what is elsewhere is not."""
    if folder.is_symlink():
        raise UserError(
            f"{folder} is a link, which whoever made the run may have put there; choose a folder: --out DIR"
        )
    return folder


def check_worker(worker: int, config: RunConfig) -> None:
    """Refuse the number of a worker that the federation has not."""
    if worker >= config.federation.workers:
        raise UserError(f"--id {worker}: the workers of this federation are 0 to {config.federation.workers - 1}")


def check_addresses(given: Mapping[str, str | None]) -> None:
    """Refuse what is no address, by option; those that were not given are none."""
    for option, text in given.items():
        if text is not None:
            check_address(text, option)


def check_address(text: str, option: str) -> None:
    """Refuse what is no address."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UserError(f"{option} {text}: expected HOST:PORT, for example 192.0.2.10:7000")
