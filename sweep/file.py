"""The sweep's file: one YAML file, checked key by key."""

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from sweep.numbers import NUMBERS
from vfl.config import Section, read_tree
from vfl.errors import UserError
from vfl.registry import explain

Changes = dict[str, Any]


class TableConfig(Section):
    """What the table and the picture show: one number, over the values of some axes."""

    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    value: str = "attack.psnr_mean"

    @field_validator("rows", "columns", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("value")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in NUMBERS:
            raise ValueError(f"there is no such number, choose one of {', '.join(NUMBERS)}")
        return value


class SweepConfig(Section):
    """A whole sweep."""

    base: str | dict[str, Any]
    axes: dict[str, dict[str, Changes]] = Field(default_factory=dict)
    skip: tuple[dict[str, tuple[str, ...]], ...] = ()
    only: tuple[dict[str, tuple[str, ...]], ...] = ()
    cells: dict[str, Changes] = Field(default_factory=dict)
    table: TableConfig = TableConfig()

    @field_validator("base", mode="before")
    @classmethod
    def _path_or_tree(cls, value: Any) -> Any:
        if not isinstance(value, str | dict):
            raise ValueError("expected the path of a config file, or a config")
        return value

    @field_validator("axes", mode="before")
    @classmethod
    def _named(cls, axes: Any) -> Any:
        if not isinstance(axes, dict):
            return axes
        return {_name(axis): _values(_name(axis), given) for axis, given in axes.items()}

    @field_validator("cells", mode="before")
    @classmethod
    def _named_cells(cls, cells: Any) -> Any:
        return {_name(cell): _changes(given) for cell, given in cells.items()} if isinstance(cells, dict) else cells

    @field_validator("skip", "only", mode="before")
    @classmethod
    def _listed(cls, entries: Any) -> Any:
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            return entries
        return [{_name(axis): _names(given) for axis, given in one.items()} for one in entries]


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
    return {_name(value): _changes(changes) for value, changes in given.items()} if isinstance(given, dict) else given


def _changes(given: Any) -> Any:
    return {} if given is None else given


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
