"""`list`: what a config can name, every plug-in with one line, which names the paper it follows."""

from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Annotated, Any

import typer

from vfl.cli.options import Changes
from vfl.config import RunConfig, load_config
from vfl.errors import UserError
from vfl.registry import Plugin, Registry
from vfl.shipped import FOLDERS, shipped_files

WIDTH, FILE_WIDTH = 16, 40
KINDS = ("attacks", "defences", "datasets", "models", "optimizers")


def list_plugins(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="attacks, defences, datasets, models or optimizers, all of them without KIND; configs or experiments: "
            "the files that came with cafe.",
            autocompletion=lambda: [*KINDS, *FOLDERS[:2]],
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--for", metavar="FILE", help="attacks: which can run on this config, and why not.")
    ] = None,
    changes: Changes = None,
) -> None:
    """Show what can be named in a config: every plug-in, or those of a kind with their options."""
    if file is not None or changes:
        if kind != "attacks" or file is None:
            raise UserError("--for FILE says which attacks can run on a config: cafe list attacks --for FILE")
        for line in applicable(load_config(file, changes)):
            print(line)
        return
    from attacker.interface import attacks
    from vfl.datasets import datasets
    from vfl.models import models
    from vfl.optimisers import optimisers
    from worker.defences import defences

    registries: tuple[Registry[Any], ...] = (attacks, defences, datasets, models, optimisers)
    kinds = dict(zip(KINDS, registries, strict=True))
    if kind in FOLDERS[:2]:
        for name, about in shipped_files(kind):
            print(f"{name:<{FILE_WIDTH}} {about}")
        return
    if kind is not None and kind not in kinds:
        raise UserError(f"cafe list {kind}: choose one of {', '.join((*kinds, *FOLDERS[:2]))}")
    for name in [kind] if kind else kinds:
        if kind is None:
            print(f"{name}:")
        for line in catalogue(kinds[name], options=kind is not None):
            print(line)


def applicable(config: RunConfig) -> Iterator[str]:
    """Yield a line for each attack, whether it can run on a config or what it lacks; with the config's own options."""
    from attacker.interface import RefusalError
    from attacker.start import refusals
    from vfl.datasets.slices import data_facts
    from vfl.plan.workload import setting_of

    found = refusals(setting_of(config, data_facts(config)).seen_by(config), config.attack)
    for name, refusal in found.items():
        why = refusal.reason if isinstance(refusal, RefusalError) else refusal
        yield f"{name:<{WIDTH}} " + (f"cannot run: {why}" if why else "can run")
    if any(found.values()):
        yield f"{'':<{WIDTH}} that an attack cannot run says nothing about safety"


def catalogue(registry: Registry[Any], options: bool) -> Iterator[str]:
    """Yield a line for each plug-in of a kind, with its options if asked for; one that cannot be used says why."""
    for name in registry.names():
        package = registry.package(name)
        try:
            plugin = registry.find(name)
        except UserError as error:
            yield f"{name:<{WIDTH}} {error}"
            continue
        first = (plugin.__doc__ or "says nothing of itself").strip().splitlines()[0]
        yield f"{name:<{WIDTH}} {first}" + (f" (from the package {package})" if package else "")
        if options and plugin.model_fields:
            yield f"{'':<{WIDTH}} options: {_options(plugin)}"
    for sentence in registry.hidden():
        yield f"{'':<{WIDTH}} {sentence}"


def _options(plugin: type[Plugin]) -> str:
    return ", ".join(
        f"{key} (needed)" if field.is_required() else f"{key}={_shown(field.get_default())}"
        for key, field in plugin.model_fields.items()
    )


def _shown(value: Any) -> str:
    """Return a default as a config would have it; paths are text there."""
    return repr(str(value) if isinstance(value, PurePath) else value)
