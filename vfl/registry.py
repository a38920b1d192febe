"""Plug-ins by name: built-in ones, those of other packages (entry points), and `package.module:attribute`."""

import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from vfl.errors import CafeError, RunFailedError, UserError
from vfl.limits import NAME_CHARACTERS, plain
from vfl.shipped import shipped_root

_NAME = re.compile(r"\w[\w.:-]*", re.ASCII)
OURS = ("attacker", "vfl", "worker")
"""The packages whose plug-ins come with this one: an error inside of those is a bug, and keeps its traceback."""


class Section(BaseModel):
    """A part of the config: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Plugin(Section):
    """Base of all plug-ins: the fields are its options in the config."""


P = TypeVar("P", bound=Plugin)
C = TypeVar("C", bound=type[Plugin])
Adapt = Callable[[str, Callable[..., Any]], type[P]]
"""Makes a plug-in class of a plain function, given the name it was found by."""


class Registry(Generic[P]):
    """The plug-ins of one kind, which a key of the config names: by default `name` in the section called `kind`."""

    def __init__(
        self, kind: str, base: type[P], group: str, ours: Iterable[str], *, adapt: Adapt[P] | None = None, key: str = ""
    ) -> None:
        """Begin with the modules of the built-in ones; `adapt` is for kinds that plain functions can be, too."""
        self.kind, self.group, self._base, self._adapt = kind, group, base, adapt
        self._key = key or f"{kind}.name"
        self._builtins = tuple(ours)
        self._classes: dict[str, type[P]] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator: make the plug-in known as `name`."""

        def add(cls: C) -> C:
            if name in self._classes:
                raise ValueError(f"there are two {self.kind} plug-ins called {name}")
            self._classes[name] = cls  # type: ignore[assignment]
            return cls

        return add

    def builtin_names(self) -> list[str]:
        """Return the names of those that come with this project."""
        self._import_builtins()
        return list(self._classes)

    def names(self) -> list[str]:
        """Return what a config can name, sorted."""
        self._import_builtins()
        return sorted({*self._classes, *(entry.name for entry in entry_points(group=self.group))})

    def package(self, name: str) -> str | None:
        """Return the other package that a plug-in comes from, None for a built-in one."""
        self._import_builtins()
        entries = () if name in self._classes else entry_points(group=self.group, name=name)
        return next((entry.dist.name for entry in entries if entry.dist), None)

    def hidden(self) -> list[str]:
        """Return a sentence on each plug-in of another package that its name does not lead to: the name was taken."""
        self._import_builtins()
        taken = dict.fromkeys(self._classes, "a built-in one")
        sentences = []
        for entry in entry_points(group=self.group):
            package = entry.dist.name if entry.dist else "another package"
            if entry.name in taken:
                what = f"{'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind} plug-in {entry.name}"
                sentences.append(
                    f"{package} has {what} too; {taken[entry.name]} has the name, so call it {entry.value}"
                )
            else:
                taken[entry.name] = f"that of {package}"
        return sentences

    def find(self, name: str, adapt: Adapt[P] | None = None) -> type[P]:
        """Return the plug-in class called `name`; `adapt` takes the place of the registry's own."""
        self._import_builtins()
        if name in self._classes:
            return self._classes[name]
        for entry in entry_points(group=self.group):
            if entry.name == name:
                return self._checked(name, self._load(entry), adapt)
        if ":" in name:
            return self._checked(name, self._import_from(name), adapt)
        raise UserError(
            f"{self._key}: there is no {self.kind} called {name!r}; choose one of {', '.join(self.names())}, "
            f"or name your own as package.module:Class"
        )

    def build(self, section: "PluginSection", adapt: Adapt[P] | None = None) -> P:
        """Return the plug-in that a config section names, with its options checked."""
        plugin = self.find(section.name, adapt)
        with self.guard(section.name, plugin, "the check of its options"):
            try:
                return plugin.model_validate(section.options)
            except ValidationError as error:
                has = f"the options {', '.join(plugin.model_fields)}" if plugin.model_fields else "no options"
                raise UserError(explain(error, self._key.rpartition(".")[0], f"{section.name} has {has}")) from None

    @contextmanager
    def guard(self, name: str, plugin: object, doing: str, *passing: type[Exception]) -> Iterator[None]:
        """Say of an error inside a plug-in that is not ours whose it is and where; `passing` are no errors."""
        module = (plugin if isinstance(plugin, type) else type(plugin)).__module__
        try:
            yield
        except CafeError:
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, passing) or module.partition(".")[0] in OURS:
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            where = _place(error, module)
            raise RunFailedError(f"the {self.kind} plug-in {name} failed in {doing}: {reason} ({where})") from error

    def _import_builtins(self) -> None:
        for module in self._builtins:
            importlib.import_module(module)

    def _load(self, entry: EntryPoint) -> Any:
        try:
            return entry.load()
        except (Exception, SystemExit) as error:  # whatever the module of another package does when it is imported
            package = f" of the package {entry.dist.name}" if entry.dist else ""
            where = f"the plug-in {entry.name!r}{package} ({entry.value})"
            raise UserError(f"{self._key}: {where} cannot be imported: {_in_one_line(error)}") from None

    def _import_from(self, name: str) -> Any:
        module, _, attribute = name.partition(":")
        here = Path.cwd()
        for folder in (str(here), str(shipped_root())):  # where files can be named; last, or they could hide another's
            if folder not in sys.path:
                sys.path.append(folder)
            _share_package(module, folder)
        try:
            return getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as error:  # whatever a module of another's does when it is imported
            other, file = getattr(sys.modules.get(module), "__file__", None), here / f"{module}.py"
            taken = other is not None and other != str(file) and file.exists()
            rename = f" ({file} has the name of {other}: rename it)" if taken else ""
            raise UserError(f"{self._key}: {name!r} cannot be imported: {_in_one_line(error)}{rename}") from None

    def _checked(self, name: str, thing: Any, adapt: Adapt[P] | None) -> type[P]:
        if isinstance(thing, type) and issubclass(thing, self._base):
            return thing
        adapt = adapt or self._adapt
        of_another_kind = isinstance(thing, type) and issubclass(thing, Plugin)
        if adapt and callable(thing) and not of_another_kind:
            return adapt(name, thing)
        base = f"{self._base.__module__}.{self._base.__name__}"
        function = f", nor a function that builds a {self.kind}" if adapt else ""
        raise UserError(f"{self._key}: {name!r} is not a plug-in class (a subclass of {base}){function}")


def _share_package(module: str, folder: str) -> None:
    """Let a package of another's have a folder's modules too, last: opacus installs one that is called `examples`."""
    top, dot, _ = module.partition(".")
    own = str(Path(folder) / top)
    if not dot or not Path(own).is_dir():
        return
    with suppress(Exception, SystemExit):  # what goes wrong is said when the module itself is imported
        searched = importlib.import_module(top).__path__
        if own not in searched:
            searched.append(own)


def _in_one_line(error: BaseException) -> str:
    """Return an error in one line; what it is called says much of those that are not about imports."""
    kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())


def _place(error: BaseException, module: str) -> str:
    """Return where in a module an error came up, or where it was raised if that module had no part in it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = getattr(sys.modules.get(module), "__file__", None)
    frame = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1])
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def _plugin_name(name: str) -> str:
    if len(name) > NAME_CHARACTERS or not _NAME.fullmatch(name):  # folders are called after plug-ins
        raise ValueError("a plug-in's name is made of letters, digits and . _ - :")
    return name


PluginName = Annotated[str, AfterValidator(_plugin_name)]


class PluginSection(BaseModel):
    """A config section `{name: …, option: …}`; the options are checked by the plug-in that is named."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: PluginName

    @property
    def options(self) -> dict[str, Any]:
        """Return everything but the name."""
        return dict(self.model_extra or {})


MOST_PROBLEMS = 20
"""How many bad keys are named; a person corrects no more at a time."""


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
            got = "" if isinstance(found["input"], dict) else f" (got {plain(repr(found['input']))})"
            sentences.append((f"{key}: " if parts else "") + message[:1].lower() + message[1:] + got)
    if len(sentences) > MOST_PROBLEMS:
        sentences[MOST_PROBLEMS:] = [f"and {len(sentences) - MOST_PROBLEMS} more like these"]
    return "; ".join(sentences)
