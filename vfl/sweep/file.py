"""The sweep's file: one YAML file, checked key by key."""

import copy
import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator

from vfl.config import read_tree
from vfl.errors import UserError
from vfl.registry import Section, explain
from vfl.sweep.results import NUMBERS

Changes = dict[str, Any]
"""New values by their keys: dotted ones, or whole sections."""

REPLACED = {"defence"}
"""Sections that a change replaces whole: a part of one of their forms (single, chain, by worker) fits no other."""
EITHER = {"epochs": "rounds", "rounds": "epochs"}
"""Two keys for how long a federation goes on: a change that sets one removes the other."""


def _known_number(name: str) -> str:
    if name not in NUMBERS:
        raise ValueError(f"there is no such number, choose one of {', '.join(NUMBERS)}")
    return name


OneOrSeveral = Annotated[
    tuple[str, ...] | None, BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]


class TableConfig(Section):
    """What the table and the picture show: one number, over the values of some axes."""

    rows: OneOrSeveral = None
    columns: OneOrSeveral = None
    value: Annotated[str, AfterValidator(_known_number)] = "attack.psnr_mean"
    along: str | None = None
    """An axis of the rows whose values are numbers: curves along it are drawn besides the heat map."""


Where = Annotated[
    dict[str, tuple[str, ...]], BeforeValidator(lambda where: _entry(where) if isinstance(where, dict) else where)
]
"""Values by their axes."""


class Adjustment(Section):
    """Changes to the cells that have some values on some axes, made after those of the axes."""

    where: Where
    change: Changes


class _Grid(Section):
    """Axes, which of their cells to leave out, and which to adjust."""

    axes: dict[str, dict[str, Changes]] = Field(default_factory=dict)
    skip: tuple[Where, ...] = ()
    only: tuple[Where, ...] = ()
    adjust: tuple[Adjustment, ...] = ()

    @field_validator("axes", mode="before")
    @classmethod
    def _named(cls, axes: Any) -> Any:
        if not isinstance(axes, dict):
            return axes
        return {_name(axis): _values(_name(axis), given) for axis, given in axes.items()}


class SizeConfig(_Grid):
    """A sweep made smaller or larger: changes to its base, axes instead of its own, more to skip and to adjust."""

    note: str = ""
    """What part of the whole sweep this size has."""
    rounds: tuple[int, ...] = ()
    """After which rounds the page shows the numbers of each run, instead of those at its end alone."""
    base: Changes = Field(default_factory=dict)


class FigureConfig(Section):
    """A figure of a paper that `cafe results` draws: images of some runs below each other, or curves of a number."""

    name: str = Field(pattern="[a-z0-9_-]+")
    title: str
    rows: str
    """The axis whose values are the rows of images, or the lines of a panel."""
    where: dict[str, str] = Field(default_factory=dict)
    number: Annotated[str, AfterValidator(lambda name: _known_number(name))] | None = None
    """What is drawn as curves; images without."""
    panels: str | None = None
    """The axis with a panel for each of its values."""


class PaperConfig(Section):
    """What a paper prints for this table, and why ours differs."""

    table: str
    title: str
    place: float = math.inf
    """The order on the page: lowest first, then by the files' names."""
    numbers: dict[str, dict[str, float | dict[str, float]]] = Field(default_factory=dict)
    """By row and column of our table: one of its own value, or several by their names."""
    shows: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Which numbers the page has of which columns, where they are not all of them the table's value."""
    note: str = ""
    """How the two compare, and the difference explained."""
    figures: tuple[FigureConfig, ...] = ()

    @field_validator("shows", mode="after")
    @classmethod
    def _numbers(cls, shows: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for number in shows:
            _known_number(number)
        return shows

    @field_validator("numbers", mode="after")
    @classmethod
    def _printed_numbers(
        cls, rows: dict[str, dict[str, float | dict[str, float]]]
    ) -> dict[str, dict[str, float | dict[str, float]]]:
        for given in rows.values():
            for value in given.values():
                for number in value if isinstance(value, dict) else ():
                    _known_number(number)
        return rows

    @field_validator("numbers", mode="before")
    @classmethod
    def _named(cls, rows: Any) -> Any:
        if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            return rows
        return {_name(row): {_name(column): value for column, value in given.items()} for row, given in rows.items()}

    def printed(self, row: str, column: str, value: str) -> dict[str, float]:
        """Return what the paper prints in a place of the table, by number; a number without a name is the table's."""
        there = self.numbers.get(row, {}).get(column, {})
        return there if isinstance(there, dict) else {value: there}


class SweepConfig(_Grid):
    """A whole sweep."""

    base: str | dict[str, Any]
    cells: Annotated[dict[str, Changes], BeforeValidator(lambda cells: _named_changes(cells))] = Field({})
    table: TableConfig = TableConfig()
    sizes: dict[str, SizeConfig] = Field(default_factory=dict)
    paper: PaperConfig | None = None

    @field_validator("base", mode="before")
    @classmethod
    def _path_or_tree(cls, value: Any) -> Any:
        if not isinstance(value, str | dict):
            raise ValueError("expected the path of a config file, or a config")
        return value


def read_sweep(path: Path) -> SweepConfig:
    """Read a sweep's file."""
    try:
        return SweepConfig.model_validate(read_tree(path, "sweep", "experiments/"))
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error)}") from None


def _values(axis: str, given: Any) -> Any:
    """Return an axis's named changes; a list is short for the values of the one key that the axis is named after."""
    if isinstance(given, list):
        return {_name(_spelled(value)): {axis: value} for value in given}
    return _named_changes(given)


def _named_changes(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    return {_name(name): {} if changes is None else changes for name, changes in given.items()}


def _entry(given: dict[Any, Any]) -> dict[str, list[str]]:
    """Return values by their axes, as text."""
    return {_name(axis): _names(values) for axis, values in given.items()}


def _names(given: Any) -> list[str]:
    return [_name(_spelled(value)) for value in (given if isinstance(given, list) else [given])]


def _spelled(value: Any) -> Any:
    """Return truth values and null as YAML writes them."""
    return {"True": "true", "False": "false", "None": "null"}.get(str(value), value)


def _name(value: Any) -> str:
    """Return a name as text; YAML reads `16` as a number, and `off` as a truth value."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"the name {value!r} is not text: put it in quotes, or write name: changes")
    return str(value)


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
    """Set a key: a mapping is merged into the present one, unless it replaces it (`REPLACED`, or it has a name)."""
    there, whole = node.get(last), key in REPLACED or not isinstance(value, dict) or "name" in value
    if isinstance(there, dict) and not whole:
        for part, inner in value.items():
            _put(there, part, inner, f"{key}.{part}")
        return
    node[last] = value
    section, _, part = key.rpartition(".")
    if section == "federation" and part in EITHER and value is not None:
        node.pop(EITHER[part], None)
