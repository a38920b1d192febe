"""The commands of `cafe`, and how each of them ends."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from vfl.cli import audit, catalogue, federation, research, setup
from vfl.cli.check import check
from vfl.cli.explain import explain
from vfl.cli.init import init
from vfl.errors import CafeError, InterruptedRunError, UserError, in_words
from vfl.local.stop import interrupt, stopped

# gRPC's core logs what our errors say in a sentence, and nothing here forks after it is initialised; it reads both
# when it is first imported, by a command.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A red-team bench for vertical federated learning: what does a curious party learn of everybody's data?",
    epilog="Begin with `cafe demo`, then `cafe init`. An error ends with a code, as in [E20]: `cafe explain E20`.",
)


def _say_versions(wanted: bool) -> None:
    if wanted:
        from vfl.folder.versions import made_with

        print(", ".join(f"{name} {version}" for name, version in made_with().items()))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_versions, is_eager=True, help="Print the versions, and exit.")
    ] = False,
) -> None:
    """What stands before a command."""


def add(panel: str, command: Callable[..., None], example: str, name: str | None = None) -> None:
    """Make a command known: below which heading of `cafe --help`, and the example that its own help ends with."""
    app.command(name, rich_help_panel=panel, epilog=f"Example: {example}")(command)


START, RUN, LOOK = "Start here", "Run a federation and attack it", "Look at what came of it"
MANY, MACHINES, WORDS = "Compare many runs", "Spread a federation over machines", "Look something up"

add(START, federation.demo, "cafe demo")
add(START, init, "cafe init my.csv --label income --workers 3 --out my.yaml")
add(START, setup.doctor, "cafe doctor")
add(RUN, federation.run, "cafe run configs/digits.yaml --set federation.workers=2 --out runs/two")
add(RUN, federation.plan, "cafe plan configs/demo.yaml")
add(RUN, research.attack, "cafe attack runs/digits/transcript --attack least_squares --out runs/again")
add(RUN, check, "cafe check runs/digits/transcript")
add(RUN, audit.audit, "cafe audit configs/tables/adult.yaml --budget 15m --out runs/audit")
add(LOOK, research.report, "cafe report runs/demo")
add(LOOK, research.show_page, "cafe ui runs/demo", "ui")
add(LOOK, research.export, "cafe export runs/demo --to csv --out tables")
add(MANY, research.sweep, "cafe sweep experiments/smoke.yaml --out runs/smoke")
add(MANY, research.bench, "cafe bench all --short")
add(MANY, audit.submit, "cafe submit runs/demo")
add(MANY, research.results, "cafe results --add runs/table2-small")
add(MACHINES, federation.serve, "cafe serve run.yaml --listen 0.0.0.0:7000 --tls certs")
add(MACHINES, federation.work, "cafe work run.yaml --id 0 --coordinator 192.0.2.10:7000 --tls certs")
add(MACHINES, setup.certs, "cafe certs certs --workers 4 --coordinator-name 192.0.2.10")
add(MACHINES, setup.cut, "cafe slice run.yaml --out slices", "slice")
add(MACHINES, setup.health, "cafe health 192.0.2.10:7000 --tls certs --id 0")
add(WORDS, catalogue.list_plugins, "cafe list attacks --for configs/digits.yaml", "list")
add(WORDS, explain, "cafe explain E20")


def run_command() -> None:
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
        if not (said := usage()):  # `cafe` alone, which has shown its help
            raise SystemExit(2) from None
        _end(UserError(f"{said} Try cafe --help."))
    if stopped():
        _end(InterruptedRunError("stopped"))
    raise SystemExit(code or 0)


def _end(error: CafeError) -> NoReturn:
    # Python notes a Ctrl-C that met it inside an `exec`, as of any dataclass, and would end by the signal, without our
    # exit code; a further `exec`, even an empty one, clears the note.
    exec("")  # nosec B102
    code = f" [{error.code}]" if error.code else ""
    print(f"cafe: {error}{code}", file=sys.stderr)
    raise SystemExit(error.exit_code)
