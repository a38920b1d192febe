"""`report`, `export`, `ui`: a run's folder as a page, as files for other programs, as a page that is served."""

from pathlib import Path
from typing import Annotated

import typer

from vfl.cli.options import UI_LISTEN, UiListen, check_address, no_link
from vfl.errors import UserError


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or of a sweep.")],
) -> None:
    """Write DIR/report.html again: everything that a run or a sweep showed, in one file that needs no network."""
    from vfl.report.main import write_report

    print(write_report(folder))


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
    from vfl.report.export import export_csv, export_mlflow

    if to == "mlflow":
        print(export_mlflow(folder, out))
    else:
        for path in export_csv(folder, Path(out) if out else no_link(folder / "csv")):
            print(path)


def show_page(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, finished or not.")],
    ui_listen: UiListen = UI_LISTEN,
) -> None:
    """Serve the page of a run's folder, until Ctrl-C."""
    check_address(ui_listen, "--ui-listen")
    from vfl.ui.main import open_place, show_folder

    show_folder(folder, open_place(ui_listen))
