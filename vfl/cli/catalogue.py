"""`list`: what a config can name, every plug-in with one line, which names the paper it follows."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any

import typer

from vfl.errors import UserError
from vfl.registry import Plugin, Registry

WIDTH = 16


def list_plugins(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="KIND", help="attacks, defences, datasets, models or optimizers; all without it."),
    ] = None,
) -> None:
    """Show what can be named in a config: every plug-in, or those of a kind with their options."""
    from attacker.interface import attacks
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
