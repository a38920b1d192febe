"""Recorded runs are data, and may be anybody's: they import, fetch and call nothing that the user does not name too."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from vfl.errors import UserError
from vfl.limits import plain


def refuse_imports(sections: Mapping[str, Any], said: Collection[str], source: Path) -> None:
    """End with a sentence where a recorded config names `package.module:attribute`, and the user has not."""
    for key, name in _values(sections, "name"):
        if ":" in name and name not in said:
            raise UserError(
                f"{source}: the recorded run names code of its own to be imported, {key} {name}; "
                f"if you trust that code, say so: --set {key}={name}"
            )


def refuse_addresses(sections: Mapping[str, Any], said: Collection[str], source: Path) -> None:
    """End with a sentence where a recorded config names a cluster to be called, and the user has not."""
    for key, address in _values(sections, "address"):
        if address not in said:
            raise UserError(
                f"{source}: the recorded run names a cluster to work on, {key} {plain(address)}; "
                f"if you trust it, say so (--set {key}={plain(address)}), or name the attack anew (--attack)"
            )


def without_download(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded data section that fetches nothing, whatever it says."""
    return {**data, "download": False} if data.get("download") else dict(data)


def _values(tree: Any, wanted: str, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield what a config's sections have under a key, however deep, with the whole key."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if key == wanted and isinstance(value, str):
                yield f"{where}{key}", value
            else:
                yield from _values(value, wanted, f"{where}{key}.")
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _values(value, wanted, f"{where}{index}.")
