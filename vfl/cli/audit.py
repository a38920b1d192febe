"""`audit`: what a federation leaks, to whom, and what stops it."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vfl.cli.options import Changes, Quiet
from vfl.config import load_config
from vfl.errors import RunFailedError, UserError

if TYPE_CHECKING:
    from vfl.audit.course import Wanted
    from vfl.audit.schema import Audit
    from vfl.registry import PluginSection
    from vfl.seats import Seat

What = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE", help="A run's YAML file; or the transcript/ folders that parties of one run recorded."
    ),
]
Defence = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DEFENCE",
        help="A defence to try, as a config has it; may be repeated. none: try none. All that apply by default.",
    ),
]
Attacks = Annotated[
    list[str] | None,
    typer.Option(
        "--attack", metavar="ATTACK", help="An attack to try, as a config names it; may be repeated. All by default."
    ),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION", help='End with exit code 1 if the audit finds this, as in "labels > 0.6"; may be repeated.'
    ),
]
Auxiliary = Annotated[
    int,
    typer.Option(min=0, help="Assume that curious workers and the label holder know so many whole samples already."),
]


def audit(
    what: What = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="The folder for the results; runs/NAME-audit by default.")] = None,
    *,
    budget: Annotated[str, typer.Option(help="How long the audit may take, as in 90s, 15m or 1h30m.")] = "15m",
    attack: Attacks = None,
    defence: Defence = None,
    limit: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Call it a leak if an attacker knows more than this share of what a guess leaves open."
        ),
    ] = 0.1,
    auxiliary: Auxiliary = 0,
    fail_if: FailIf = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the audit in --out.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, although --out has an unfinished audit.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of audit.json, and do nothing else.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Say who learns what in a federation, and what stops it: try every attack that applies, then defences."""
    if schema:
        print_schema()
        return
    if not what:
        raise UserError("name a run's YAML file (see configs/), or the transcript/ folders of a recorded run")
    from vfl.audit.budget import seconds_of
    from vfl.audit.conditions import Condition
    from vfl.audit.course import Wanted
    from vfl.folder import held

    conditions = [Condition.read(text) for text in fail_if or ()]
    wanted = Wanted(
        budget=seconds_of(budget),
        limit=limit,
        attacks=_attacks(attack),
        defences=_defences(defence),
        auxiliary=auxiliary,
        changes=tuple(changes or ()),
        command=shlex.join(["cafe", *sys.argv[1:]]),
        quiet=quiet,
        resume=resume,
    )
    prepared = _prepared(what, wanted)  # what is wrong with it is said before there is a folder
    folder = out or Path("runs") / f"{what[0].stem}-audit"
    with held(folder):
        _check_unfinished(folder, resume, fresh)
        found = prepared(folder)
    if not quiet:
        show_audit(found, folder)
    if failures := [failure for one in conditions if (failure := one.failure(found))]:
        raise RunFailedError(f"--fail-if {'; '.join(failures)}", code="E83")


def submit(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, sweeps or audits.")],
    kept: Annotated[Path, typer.Option(help="The folder where results are kept.")] = Path("experiments/results"),
    docs: Annotated[Path, typer.Option(help="The folder of pages whose tables are filled in.")] = Path("docs"),
) -> None:
    """Add what runs, sweeps or audits measured to the leaderboard, and write its table in the docs anew."""
    from vfl.audit.leaderboard import NAME
    from vfl.audit.leaderboard import submit as add
    from vfl.sweep.results.docs import fill_docs

    if not docs.is_dir():
        raise UserError(f"--docs {docs}: there is no such folder; run it where the docs are, or name them")
    print(f"{add(folders, kept)} lines are kept in {kept / f'{NAME}.json'}")
    for page in fill_docs(docs, Path("experiments/paper"), kept):
        print(f"{page} is written")


def print_schema() -> None:
    """Print the JSON schema of audit.json."""
    import json

    from vfl.audit.schema import Audit

    print(json.dumps(Audit.model_json_schema(mode="serialization"), indent=1))


def _prepared(what: list[Path], wanted: "Wanted") -> "Callable[[Path], Audit]":
    """Read the config or the transcripts, and return what audits them into a folder."""
    from vfl.audit.main import audit_config, audit_transcripts, check_defences
    from vfl.audit.plan import check_attacks

    check_attacks(wanted.attacks or ())
    if len(what) == 1 and not what[0].is_dir():
        config = load_config(what[0], list(wanted.changes))
        check_defences(wanted, config)
        return lambda folder: audit_config(config, what[0].stem, folder, wanted)
    found = _transcripts(what, wanted.changes)
    return lambda folder: audit_transcripts(found, what[0].resolve().parent.name, folder, wanted)


def _transcripts(folders: list[Path], changes: tuple[str, ...]) -> "dict[Seat, Path]":
    """Return the transcripts in folders, or in the folders of runs, by the seat that each was recorded at.

    Nothing that they name is imported or called unless the user names it too.
    """
    from vfl.folder.recorded_config import refuse_addresses, refuse_imports
    from vfl.folder.transcript import Transcript

    found: dict[Seat, Path] = {}
    said, first = [change.partition("=")[2] for change in changes], None
    for folder in folders:
        inside = [folder] if (folder / "meta.json").exists() else sorted(folder.glob("**/transcript"))
        if not inside:
            raise UserError(f"{folder}: holds no transcript (transcript: true in a run's config keeps one)")
        for path in inside:
            transcript = Transcript(path)
            tree = transcript.config.model_dump(mode="json")
            first = first or (path, tree)
            if tree != first[1]:
                raise UserError(f"{path} and {first[0]} are of different runs: their configs differ")
            sections = {key: tree[key] for key in ("model", "data", "attack")}
            refuse_imports(sections, said, path)
            refuse_addresses(sections, said, path)
            for seat in transcript.setting.seats:
                found[seat] = path
    return found


def _attacks(given: list[str] | None) -> "tuple[PluginSection, ...] | None":
    from pydantic import ValidationError

    from vfl.registry import PluginSection, explain

    try:
        return tuple(map(PluginSection.model_validate, _named("--attack", given))) if given else None
    except ValidationError as error:
        raise UserError(f"--attack: {explain(error)}") from None


def _defences(given: list[str] | None) -> tuple[Any, ...] | None:
    return None if given is None else tuple(one for one in _named("--defence", given) if one != {"name": "none"})


def _named(option: str, given: list[str]) -> list[Any]:
    """Return plug-ins as a config has them: by name, or with options in YAML."""
    from vfl.files.yaml_text import YamlError, parse_yaml

    found = []
    for text in given:
        try:
            tree = parse_yaml(text)
        except YamlError as error:
            raise UserError(f"{option} {text}: is not YAML as it is read here: {error}") from None
        if not isinstance(tree, str | dict | list) or not tree:
            raise UserError(f"{option} {text}: expected a name, or {{name: …, option: …}}")
        found.append({"name": tree} if isinstance(tree, str) else tree)
    return found


def _check_unfinished(folder: Path, resume: bool, fresh: bool) -> None:
    """Refuse to throw away an audit that was not finished, or to go on with one that is not there."""
    from vfl.audit.schema import FILE, load_audit

    if resume and fresh:
        raise UserError("--fresh: it throws away what --resume goes on from; choose one of them")
    if resume and not (folder / FILE).exists():
        raise UserError(f"--resume: {folder} holds no audit")
    if (folder / FILE).exists() and not resume and not fresh and not load_audit(folder).ended:
        raise UserError(f"{folder} has an audit that is not finished: --resume goes on with it, --fresh begins anew")


def show_audit(found: "Audit", folder: Path) -> None:
    """Print the verdict."""
    from rich.console import Console

    from vfl.audit.document.parts import LABELS
    from vfl.cli.ending import STYLES

    console = Console(highlight=False, markup=False)
    console.print(LABELS[found.verdict].upper(), style=STYLES[found.verdict], soft_wrap=True)
    advice = found.recommendation
    held = f"It held against {'; '.join(advice.held_against)}." if advice.held_against else ""
    for sentence in (*found.sentences, advice.sentence, held):
        if sentence:
            console.print(f"- {sentence}", soft_wrap=not console.is_terminal)
    files = [name for name in ("audit.html", "audit.pdf", "audit.json") if (folder / name).exists()]
    console.print(f"Everything is in {folder}: {', '.join(files)}", soft_wrap=True)
