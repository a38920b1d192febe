"""What a config can name, in words: every plug-in with one line, which names the paper it follows."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from vfl.errors import UserError
from vfl.registry import Plugin, Registry

WIDTH = 16


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
