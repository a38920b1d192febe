"""Changes to a config tree, as people write them in a sweep: dotted keys, or whole sections."""

import copy
from typing import Any

REPLACED = {"defence"}
"""Sections of several forms (one, a chain, by worker): a part of one form makes no sense in another."""

EITHER = {"epochs": "rounds", "rounds": "epochs"}
"""Two ways to say how long a federation goes on: a change that gives one takes the other back."""


def changed(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with the changes made to it; ValueError says which key leads nowhere."""
    result = copy.deepcopy(tree)
    for key, value in changes.items():
        _change(result, key, copy.deepcopy(value))
    return result


def _change(tree: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node = tree
    for depth, parent in enumerate(parents, start=1):
        child = node.get(parent)
        if child is None:
            child = node[parent] = {}
        if not isinstance(child, dict):
            raise ValueError(f"{key}: {'.'.join(parents[:depth])} holds a value, not further keys")
        node = child
    _put(node, last, value, key)


def _put(node: dict[str, Any], last: str, value: Any, key: str) -> None:
    """Set a key: a mapping is merged into the one that is there, unless it is whole in itself."""
    there, whole = node.get(last), key in REPLACED or not isinstance(value, dict) or "name" in value
    if isinstance(there, dict) and not whole:
        for part, inner in value.items():
            _put(there, part, inner, f"{key}.{part}")
        return
    node[last] = value
    _take_back(node, key, value)


def _take_back(node: dict[str, Any], key: str, value: Any) -> None:
    section, _, part = key.rpartition(".")
    if section == "federation" and part in EITHER and value is not None:
        node.pop(EITHER[part], None)
