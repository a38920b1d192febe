"""`attack`, `sweep`, `results`, `bench`, `report`, `export`, `ui`: many runs, and what is done with finished ones."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated

import typer

from vfl.bench import BENCHES
from vfl.cli.ending import finish, reported, show
from vfl.cli.options import UI_LISTEN, Changes, Json, Out, Quiet, UiListen, attack_names, check_addresses, no_link
from vfl.config import RunConfig, apply_change, parse_config
from vfl.errors import UserError
from vfl.seats import adversary_of, names_of_seats

if TYPE_CHECKING:
    from vfl.datasets import Data


def attack(
    transcripts: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRANSCRIPT...",
            help="The transcript/ folder of a run; with several, those parties attack together.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--attack", help="The attack's name; the recorded run's attack by default.", autocompletion=attack_names
        ),
    ] = None,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for the results; beside the transcript by default.")
    ] = None,
    *,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Show the attack only so many rounds, the first ones; all by default.")
    ] = None,
    score: Annotated[
        bool, typer.Option(help="Load the data set of the recorded run, and score what the attack found.")
    ] = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run an attack on a recorded run: on what one curious party saw, or several of them together."""
    from attacker.driver.offline import attack_transcript
    from vfl.cli.progress import RunProgress
    from vfl.folder import held
    from vfl.folder.recorded_config import refuse_addresses, refuse_imports, without_download
    from vfl.folder.transcript import Transcript

    each, transcript = [Transcript(folder) for folder in transcripts], transcripts[0]
    recorded, seats = each[0], [seat for one in each for seat in one.setting.seats]
    if any(one.config.model_dump() != recorded.config.model_dump() for one in each):
        raise UserError(f"{transcript} and the others are of different runs: their configs differ")
    tree = recorded.config.model_dump(mode="json") | {"adversary": adversary_of(seats)}
    tree["data"] = without_download(tree["data"])
    if name is not None:
        tree["attack"] = {"name": name}
    for change in changes or []:
        apply_change(tree, change)
    config = parse_config(tree, "the recorded config")
    if [*config.seats] != seats:
        raise UserError(f"--set adversary: {transcript} holds what {names_of_seats(seats)} saw; name other transcripts")
    sections = {"model": recorded.config.model.model_dump(mode="json"), "data": tree["data"], "attack": tree["attack"]}
    said = [name or "", *(change.partition("=")[2] for change in changes or [])]
    refuse_imports(sections, said, transcript)
    refuse_addresses(sections, said, transcript)
    if out is not None and (out / "transcript").resolve() in {folder.resolve() for folder in transcripts}:
        raise UserError(f"--out {out}: is the recorded run's own folder; choose another")
    folder = out or _beside(transcript, config.attack.name)
    with held(folder), reported(folder), RunProgress(folder, 0, quiet) as watch:
        attack_transcript(recorded, config, folder, others=each[1:], most=rounds)
        finish(folder, config, _truth(config, watch.say) if score else None)
    show(folder, quiet, as_json)


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The sweep's YAML file; see experiments/.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the base config, as in data.samples=60."),
    ] = None,
    out: Out = None,
    *,
    size: Annotated[
        str | None, typer.Option(help="One of the file's sizes, such as smoke, small or paper; small by default.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="AXIS=VALUE", help="Run only cells with this value; may be repeated.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="How many cells run at a time; cores // (workers + 1) by default.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Where cells run: local or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="ray: the cluster, HOST:PORT or auto; without it one on this machine.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run many federations, one for each combination of changes to a config, and put all results in one table."""
    from vfl.sweep.plan import chosen_cells, load_plan

    plan = load_plan(file, changes, size)
    cells = chosen_cells(plan, where or [])
    folder = out or Path("runs") / plan.name
    from vfl.folder import held
    from vfl.sweep.engines import choose_engine
    from vfl.sweep.main import check_cells, run_sweep

    where_to_run = choose_engine(engine, jobs, address)
    check_cells(replace(plan, cells=cells), file)
    with held(folder):
        run_sweep(plan, folder, where_to_run, quiet=quiet, chosen=cells)


def results(
    add: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A sweep's folder, or a bench's file, that is kept; may be repeated."),
    ] = None,
    experiments: Annotated[Path, typer.Option(help="The folder of the sweeps' files.")] = Path("experiments/paper"),
    kept: Annotated[Path, typer.Option(help="The folder where results are kept.")] = Path("experiments/results"),
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("RESULTS.md"),
    *,
    docs: Annotated[Path, typer.Option(help="The folder of pages whose tables are filled in.")] = Path("docs"),
) -> None:
    """Write RESULTS.md, the paper's tables beside ours, and the tables in docs/, from the results that are kept."""
    from vfl.sweep.results.docs import fill_docs, keep
    from vfl.sweep.results.figures import draw_figures
    from vfl.sweep.results.page import draw_curves, write_page

    for source in add or []:
        print(f"kept as {' and '.join(map(str, keep(source, docs, experiments, kept)))}")
    draw_curves(experiments, kept)
    for picture in draw_figures(experiments, kept, docs):
        print(f"{picture} is drawn")
    write_page(experiments, kept, page)
    for path in (page, *fill_docs(docs, experiments, kept)):
        print(f"{path} is written")


def bench(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help=f"One of {', '.join(BENCHES)}.", autocompletion=lambda: list(BENCHES)),
    ],
    out: Annotated[Path | None, typer.Option(help="Also write the numbers to this JSON file.")] = None,
    *,
    short: Annotated[bool, typer.Option("--short", help="A few rounds only, to see that it works.")] = False,
    long: Annotated[bool, typer.Option("--long", help="faults: more than an hour of them, under attack.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="attack, one_gradient: an .npz file of images instead of the photographs.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="OLD.json NEW.json", help="all: print two files of --out beside each other."),
    ] = None,
) -> None:
    """Measure how fast a part is, how well it works, or what it survives: NAME says which."""
    if out is not None and not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    if name not in BENCHES:
        raise UserError(f"cafe bench {name}: choose one of {', '.join(BENCHES)}")
    if long and (short or name != "faults"):
        raise UserError("--long: it is for `cafe bench faults` alone, and without --short")
    measure = resolve_name(BENCHES[name])
    if name == "all":
        measure(out, short, compare)
    elif name == "faults":
        measure(out, short, long)
    elif name in ("attack", "one_gradient"):
        measure(data, out, short)
    else:
        measure(out, short)


def report(folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or of a sweep.")]) -> None:
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
    """Show a run in the browser, while it goes on or afterwards: serve the page of its folder until Ctrl-C."""
    check_addresses({"--ui-listen": ui_listen})
    from vfl.ui import check_installed

    check_installed()
    from vfl.ui.main import open_place, show_folder

    show_folder(folder, open_place(ui_listen))


def _beside(transcript: Path, attack: str) -> Path:
    """Return where results go by default: beside the transcript, but not where a link of the run's maker leads."""
    return no_link(transcript.absolute().parent / f"attack-{attack.replace(':', '.')}")


def _truth(config: RunConfig, say: Callable[[str], None]) -> "Data | None":
    from vfl.datasets.slices import load_data

    try:
        return load_data(config)
    except UserError as error:
        say(f"no scores, as the ground truth cannot be loaded: {error}")
        return None
