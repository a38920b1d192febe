"""The commands of `cafe`, and how each of them ends."""

import os
import signal
import sys
from typing import NoReturn

import typer

from vfl.cli import audit, catalogue, federation, research, setup
from vfl.errors import CafeError, InterruptedRunError, UserError, in_words
from vfl.local.stop import interrupt, stopped

# gRPC's core logs what our errors say in a sentence, and nothing here forks after it is initialised; it reads both
# when it is first imported, by a command.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A red-team bench for vertical federated learning: what does the coordinator learn of everybody's data?",
)
app.command()(federation.run)
app.command()(federation.plan)
app.command()(federation.serve)
app.command()(federation.work)
app.command()(setup.doctor)
app.command()(setup.health)
app.command()(setup.certs)
app.command("slice")(setup.cut)
app.command()(research.attack)
app.command()(audit.audit)
app.command()(audit.submit)
app.command()(research.sweep)
app.command()(research.report)
app.command()(research.export)
app.command("ui")(research.show_page)
app.command()(research.results)
app.command("list")(catalogue.list_plugins)
app.command()(research.bench)


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
        _end(UserError(f"{usage()} Try cafe --help."))
    if stopped():
        _end(InterruptedRunError("stopped"))
    raise SystemExit(code or 0)


def _end(error: CafeError) -> NoReturn:
    # Python notes a Ctrl-C that met it inside an `exec`, as of any dataclass, and would end by the signal, without our
    # exit code; a further `exec`, even an empty one, clears the note.
    exec("")  # nosec B102
    print(f"cafe: {error}", file=sys.stderr)
    raise SystemExit(error.exit_code)
