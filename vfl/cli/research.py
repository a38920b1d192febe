"""`attack`, `sweep`, `results`, `list`, `bench`: what a coordinator recorded, many runs, what there is, how fast."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vfl.bench import NAMES
from vfl.cli.ending import finish, reported, show
from vfl.cli.options import Changes, Json, Out, Quiet, no_link, results_folder
from vfl.config import RunConfig, apply_change, parse_config
from vfl.errors import UserError

if TYPE_CHECKING:
    from vfl.datasets import Data
    from vfl.registry import Registry


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
    from attacker.driver.offline import attack_transcript
    from vfl.cli.progress import RunProgress
    from vfl.folder.recorded_config import refuse_addresses, refuse_imports, without_download
    from vfl.folder.transcript import Transcript

    recorded = Transcript(transcript)
    tree = recorded.config.model_dump(mode="json")
    tree["data"] = without_download(tree["data"])
    if name is not None:
        tree["attack"] = {"name": name}
    for change in changes or []:
        apply_change(tree, change)
    config = parse_config(tree, "the recorded config")
    sections = {"model": recorded.config.model.model_dump(mode="json"), "data": tree["data"], "attack": tree["attack"]}
    said = [name or "", *(change.partition("=")[2] for change in changes or [])]
    refuse_imports(sections, said, transcript)
    refuse_addresses(sections, said, transcript)
    if out is not None and (out / "transcript").resolve() == transcript.resolve():
        raise UserError(f"--out {out}: is the recorded run's own folder; choose another")
    folder = results_folder(out or _beside(transcript, config.attack.name), transcript)
    with reported(folder), RunProgress(folder, 0, quiet) as watch:
        attack_transcript(recorded, config, folder)
        finish(folder, config, _truth(config, watch.say) if score else None)
    show(folder, quiet, as_json)


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
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS=VALUE", help="Run only cells with this value; may be repeated."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells at a time; cores // (workers + 1) by default.")] = None,
    engine: Annotated[str, typer.Option(help="Where cells run: local or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="ray: the cluster, HOST:PORT or auto; without it one on this machine.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run many federations, a grid of changes to one config, and put all results in one table."""
    from vfl.sweep.plan import chosen_cells, load_plan

    plan = load_plan(file, changes, size)
    cells = chosen_cells(plan, where or [])
    folder = results_folder(out or Path("runs") / plan.name, file)
    from vfl.sweep.engines import choose_engine
    from vfl.sweep.main import check_cells, run_sweep

    where_to_run = choose_engine(engine, jobs, address)
    check_cells(replace(plan, cells=cells), file)
    run_sweep(plan, folder, where_to_run, quiet=quiet, chosen=cells)


def results(
    add: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="A sweep's folder whose results are kept; may be repeated.")
    ] = None,
    experiments: Annotated[Path, typer.Option(help="The folder of the sweeps' files.")] = Path("experiments/paper"),
    kept: Annotated[Path, typer.Option(help="The folder where results are kept.")] = Path("experiments/results"),
    page: Annotated[Path, typer.Option(help="The page to write.")] = Path("RESULTS.md"),
) -> None:
    """Write RESULTS.md: the paper's tables beside ours, from the results that are kept."""
    from vfl.sweep.results.kept import keep_results
    from vfl.sweep.results.page import draw_curves, write_page

    for folder in add or []:
        print(f"kept as {keep_results(folder, experiments, kept)}")
    draw_curves(experiments, kept)
    write_page(experiments, kept, page)
    print(f"{page} is written")


def list_plugins(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="KIND", help="attacks, defences, datasets, models or optimizers; all without it."),
    ] = None,
) -> None:
    """Show what can be named in a config: every plug-in, or those of a kind with their options."""
    from attacker.interface import attacks
    from vfl.cli.catalogue import catalogue
    from vfl.datasets import datasets
    from vfl.models import models
    from vfl.optimisers import optimisers
    from worker.defences import defences

    kinds: dict[str, Registry[Any]] = {
        "attacks": attacks,
        "defences": defences,
        "datasets": datasets,
        "models": models,
        "optimizers": optimisers,
    }
    if kind is not None and kind not in kinds:
        raise UserError(f"cafe list {kind}: choose one of {', '.join(kinds)}")
    for name in [kind] if kind else kinds:
        if kind is None:
            print(f"{name}:")
        for line in catalogue(kinds[name], options=kind is not None):
            print(line)


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
    from vfl.bench.all import bench_all
    from vfl.bench.attack import bench_attack
    from vfl.bench.defences import bench_defences
    from vfl.bench.faults import bench_faults
    from vfl.bench.federation import bench_federation
    from vfl.bench.load import bench_load
    from vfl.bench.matching import bench_matching
    from vfl.bench.scale import bench_scale
    from vfl.bench.side import bench_side
    from vfl.bench.training import bench_training

    measure: dict[str, Callable[[Path | None, bool], None]] = {
        "all": lambda out, short: bench_all(out, short, compare),
        "attack": lambda out, short: bench_attack(data, epochs, out, short),
        "defences": bench_defences,
        "faults": bench_faults,
        "federation": bench_federation,
        "load": bench_load,
        "matching": bench_matching,
        "scale": bench_scale,
        "side": bench_side,
        "training": bench_training,
    }
    measure[name](out, short)


def _beside(transcript: Path, attack: str) -> Path:
    """Return where results go unless told: beside the transcript, but not where a link of the run's maker leads."""
    return no_link(transcript.absolute().parent / f"attack-{attack.replace(':', '.')}")


def _truth(config: RunConfig, say: Callable[[str], None]) -> "Data | None":
    from vfl.datasets.slices import load_data

    try:
        return load_data(config)
    except UserError as error:
        say(f"no scores, as the ground truth cannot be loaded: {error}")
        return None
