"""Options that several commands share, and how they are checked."""

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
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow connections to other machines that are not encrypted.")
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on from the last checkpoint in --out, as federation.checkpoint_every writes them."
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Throw away what another run, even an unfinished one, left in --out.")
]
Ui = Annotated[bool, typer.Option("--ui", help="Serve a page that shows the run as it goes on (docs/ui.md).")]
UiListen = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="Where the page is served; visitors from other machines need the token that is printed.",
    ),
]
UI_LISTEN = "127.0.0.1:8080"
REJOIN_SECONDS = 60.0
"""How long `cafe serve` waits for a lost worker, and `cafe work` tries to come back, if the config does not say."""


def no_link(folder: Path) -> Path:
    """Return a folder in a run's, unless it is a link: the run may be another user's, and what is elsewhere is not."""
    if folder.is_symlink():
        raise UserError(f"{folder} is a link, which the run's maker may have put there; choose a folder: --out DIR")
    return folder


def check_worker(worker: int, config: RunConfig) -> None:
    """Refuse the number of a worker that the federation has not."""
    if worker >= config.federation.workers:
        raise UserError(f"--id {worker}: the workers of this federation are 0 to {config.federation.workers - 1}")


def check_addresses(given: Mapping[str, str | None]) -> None:
    """Refuse what is no address, by option; those that were not given are none."""
    for option, text in given.items():
        host, _, port = (text or "").rpartition(":")
        if text is not None and (not host or not (port.isascii() and port.isdigit()) or int(port) > 65535):
            raise UserError(f"{option} {text}: expected HOST:PORT, for example 192.0.2.10:7000")


def attack_names() -> list[str]:
    """Return what a shell completes `--attack` with."""
    from attacker.interface import attacks

    return list(attacks.builtin_names())


def defence_names() -> list[str]:
    """Return what a shell completes `--defence` with."""
    from worker.defences import defences

    return list(defences.builtin_names())
