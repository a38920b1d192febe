"""Plug-ins by name: built-in ones, those of other packages (entry points), and `package.module:attribute`."""

import importlib
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from vfl.errors import UserError


class Plugin(BaseModel):
    """Base of all plug-ins: the fields are its options in the config, an unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


P = TypeVar("P", bound=Plugin)
C = TypeVar("C", bound=type[Plugin])


class Registry(Generic[P]):
    """The plug-ins of one kind. `kind` is also the config section that names them."""

    def __init__(self, kind: str, base: type[P], group: str, builtins: Iterable[str]) -> None:
        self.kind = kind
        self._base = base
        self.group = group
        self._builtins = tuple(builtins)
        self._classes: dict[str, type[P]] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator: make the plug-in known as `name`."""

        def add(cls: C) -> C:
            if name in self._classes:
                raise ValueError(f"there are two {self.kind} plug-ins called {name}")
            self._classes[name] = cls  # type: ignore[assignment]
            return cls

        return add

    def names(self) -> list[str]:
        """Return what a config can name, sorted."""
        self._import_builtins()
        return sorted({*self._classes, *(entry.name for entry in entry_points(group=self.group))})

    def find(self, name: str) -> type[P]:
        """Return the plug-in class called `name`."""
        self._import_builtins()
        if name in self._classes:
            return self._classes[name]
        for entry in entry_points(group=self.group):
            if entry.name == name:
                return self._checked(name, entry.load())
        if ":" in name:
            return self._checked(name, self._import_from(name))
        raise UserError(
            f"{self.kind}.name: there is no {self.kind} called {name!r}; choose one of {', '.join(self.names())}, "
            f"or name your own as package.module:Class"
        )

    def build(self, section: "PluginSection") -> P:
        """Return the plug-in that a config section names, with its options checked."""
        plugin = self.find(section.name)
        try:
            return plugin.model_validate(section.options)
        except ValidationError as error:
            raise UserError(explain(error, self.kind, self._has(section.name, plugin))) from None

    def _has(self, name: str, plugin: type[P]) -> str:
        options = ", ".join(plugin.model_fields)
        return f"{name} has the options {options}" if options else f"{name} has no options"

    def _import_builtins(self) -> None:
        for module in self._builtins:
            importlib.import_module(module)

    def _import_from(self, name: str) -> Any:
        module, _, attribute = name.partition(":")
        here = str(Path.cwd())
        if here not in sys.path:  # so that a file beside the config can be named, as with `python -m`
            sys.path.insert(0, here)
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UserError(f"{self.kind}.name: {name!r} cannot be imported: {error}") from None

    def _checked(self, name: str, thing: Any) -> type[P]:
        if not (isinstance(thing, type) and issubclass(thing, self._base)):
            base = f"{self._base.__module__}.{self._base.__name__}"
            raise UserError(f"{self.kind}.name: {name!r} is not a plug-in class (a subclass of {base})")
        return thing


class PluginSection(BaseModel):
    """A config section `{name: …, option: …}`; the options are checked by the plug-in that is named."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """Return everything but the name."""
        return dict(self.model_extra or {})


def explain(error: ValidationError, where: str = "", instead: str = "") -> str:
    """Turn pydantic's findings into one sentence per bad key, with the key's full name first."""
    sentences = []
    for found in error.errors():
        # A part in brackets is no key: it says which of several forms was recognised.
        parts = [part for part in (where, *map(str, found["loc"])) if part and not part.startswith("(")]
        key = ".".join(parts) or "the file"
        if found["type"] == "extra_forbidden":
            sentences.append(f"{key}: there is no such key" + (f" ({instead})" if instead else ""))
        elif found["type"] == "missing":
            sentences.append(f"{key}: is missing")
        else:
            message = found["msg"].removeprefix("Value error, ")
            got = "" if isinstance(found["input"], dict) else f" (got {found['input']!r})"
            sentences.append((f"{key}: " if parts else "") + message[:1].lower() + message[1:] + got)
    return "; ".join(sentences)
