"""The sweep's file: one YAML file, checked key by key."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, field_validator

from sweep.numbers import NUMBERS
from vfl.config import Section
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

    @field_validator("skip", mode="before")
    @classmethod
    def _listed(cls, skip: Any) -> Any:
        if not isinstance(skip, list) or not all(isinstance(one, dict) for one in skip):
            return skip
        return [{_name(axis): _names(given) for axis, given in one.items()} for one in skip]


def read_sweep(path: Path) -> SweepConfig:
    """Read a sweep's file."""
    try:
        return SweepConfig.model_validate(read_tree(path, "sweep"))
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error)}") from None


def read_tree(path: Path, kind: str) -> dict[str, Any]:
    """Read a YAML file that holds keys."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"the {kind} file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"the {kind} file {path} is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise UserError(f"the {kind} file {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise UserError(f"the {kind} file {path} holds no keys; see experiments/ for examples")
    return tree


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
