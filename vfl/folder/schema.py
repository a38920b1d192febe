"""What the models of a run's JSON files are made of; a file that is read may come from another user."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from vfl.errors import UserError
from vfl.limits import CONFIG_DEPTH, plain
from vfl.registry import explain

DEPTH = 2 * CONFIG_DEPTH
"""How deep a file may nest: it has a config in it, and a little around that."""
LARGEST = 1e100
"""No number of a run is so large; figures of larger ones cannot be drawn."""
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Part(BaseModel):
    """A part of a file; what another release has written into it besides is kept as it is."""

    model_config = ConfigDict(extra="allow")


class Live(Part):
    """A part that begins empty and is filled as a run goes: all its keys are written."""

    def model_post_init(self, _context: Any) -> None:
        """Count every field as set, as `as_json` leaves out what is not."""
        self.model_fields_set.update(type(self).model_fields)


@dataclass(frozen=True)
class Number:
    """What is said of a number wherever it is shown; it stands in the number's annotation, and only there."""

    label: str
    unit: str = ""
    form: str = ".3g"
    highest_is_best: bool = False
    limits: tuple[float, float] | None = None
    key: str = ""
    """What it is called in a sweep: its place in the file, as in `attack.psnr_mean`, if nothing else is said."""
    place: str = ""
    """Where the model has it."""

    @property
    def title(self) -> str:
        """Return the label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def text(self, value: float) -> str:
        """Write a value as a person wants to read it."""
        return format(value, self.form)


def numbers_in(kind: type[BaseModel], above: str = "") -> Iterator[Number]:
    """Give the numbers of a model and of its parts: fields, and properties that follow from them."""
    said: dict[str, Sequence[Any]] = {}
    for name, field in kind.model_fields.items():
        said[name] = field.metadata
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from numbers_in(field.annotation, f"{above}{name}.")
    for name, member in vars(kind).items():
        if isinstance(member, property):
            said[name] = getattr(get_type_hints(member.fget, include_extras=True)["return"], "__metadata__", ())
    for name, found in said.items():
        place = above + name
        yield from (replace(one, key=one.key or place, place=place) for one in found if isinstance(one, Number))


def value_at(part: Any, key: str) -> Any:
    """Return what stands at a dotted key; None below a part that is missing."""
    for name in key.split("."):
        part = None if part is None else getattr(part, name)
    return part


def flat(tree: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is in a tree by its dotted keys, lists whole."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def as_json(part: BaseModel) -> dict[str, Any]:
    """Return what is written of a model: the keys that were set, with null for numbers that JSON cannot write."""
    found: dict[str, Any] = _writable(part.model_dump(mode="json", exclude_unset=True))
    return found


def _writable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _writable(one) for key, one in value.items()}
    return [_writable(one) for one in value] if isinstance(value, list) else _finite(value)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def checked(kind: type[M], found: Any, file: Path) -> M:
    """Return what a file says as a model, or end with a sentence where it is not what any run writes."""
    problem = _unusual(found)
    try:
        if problem is None:
            return kind.model_validate(found)
    except ValidationError as error:
        problem = plain(explain(error))
    raise UserError(f"{file} cannot be shown: {problem}; was it changed, or written by another version?")


def _unusual(found: Any) -> str | None:
    """Return what no run writes, if there is any: nesting without end, numbers that are none."""
    level = [found] if isinstance(found, dict | list) else []
    for _ in range(DEPTH):
        level = [one for part in level for one in (part.values() if isinstance(part, dict) else part)]
        if any(isinstance(one, int | float) and not abs(one) <= LARGEST for one in level):
            return f"it has numbers above {LARGEST:g}"
        level = [one for one in level if isinstance(one, dict | list) and one]
        if not level:
            return None
    return f"it nests deeper than {DEPTH}"


def _drawable(value: float) -> float:
    if abs(value) > LARGEST:  # not so for NaN
        raise ValueError(f"it is above {LARGEST:g}")
    return value


Count = Annotated[int, Field(strict=True, ge=0, le=1 << 53)]
Finite = Annotated[float, Field(strict=True, ge=-LARGEST, le=LARGEST)]
Measure = Annotated[Finite | None, BeforeValidator(_finite)]
"""A number, None where there is none or it is not finite."""
_or_nan = BeforeValidator(lambda value: math.nan if value is None else value)
Point = Annotated[float, Field(strict=True), _or_nan, AfterValidator(_drawable)]
"""A number of a curve: NaN here, and null in the file, where it is not finite."""
Some = Annotated[list[T], Field(fail_fast=True)]
Word = str | int | float | bool | None
