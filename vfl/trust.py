"""Recorded runs are data, and may be anybody's: the code that they name is imported only if the user names it too."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from vfl.errors import UserError


def refuse_imports(sections: Mapping[str, Any], said: Collection[str], source: Path) -> None:
    """End with a sentence where a recorded config names `package.module:attribute`, and the user has not."""
    for key, name in _names(sections, ""):
        if ":" in name and name not in said:
            raise UserError(
                f"{source}: the recorded run names code of its own to be imported, {key} {name}; "
                f"if you trust that code, say so: --set {key}={name}"
            )


def _names(tree: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield what plug-ins a config's sections name, and under which keys."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if key == "name" and isinstance(value, str):
                yield f"{where}name", value
            else:
                yield from _names(value, f"{where}{key}.")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _names(value, f"{where}{index}.")
