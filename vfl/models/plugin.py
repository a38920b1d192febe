"""What a model plug-in is; and plain PyTorch as one: any function that builds a module, its parameters as options."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model
from torch import Tensor, nn

from vfl.errors import UserError
from vfl.partition import Shape
from vfl.registry import Plugin

TAKEN = ("name", "top", "bottom", "bottoms", "shared")
"""Names that no option of a model can have: they are keys of the config's model section."""
_MEANT = frozenset({"factory", *(name for name in dir(BaseModel) if name.startswith("model_"))})
"""Names with a meaning of their own in the class that is made of a factory."""


class SplitModel(Plugin):
    """A model plug-in: how to build a party's bottom model and the label holder's top model."""

    def bottom(self, shape: Shape) -> nn.Module:
        """Build the model that maps slices of this shape to a vector."""
        raise NotImplementedError

    def top(self, widths: Sequence[int], classes: int) -> nn.Module:
        """Build the model that maps the workers' vectors, side by side, to the classes' logits."""
        return LinearTop(sum(widths), classes)


class NoFeatures(nn.Module):
    """The bottom model of a label holder that has only labels: a vector of length zero."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a vector of no numbers for each sample."""
        return x.new_zeros(len(x), 0)


class LinearTop(nn.Module):
    """The paper's top model: the outputs side by side through one dense layer."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(features, classes)

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.fc(z)
        return logits


class Factory(SplitModel):
    """A part of a model from a function, whose further parameters are options."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    factory: ClassVar[Callable[..., nn.Module]]

    def _made(self, *given: Any) -> nn.Module:
        return type(self).factory(*given, **{name: getattr(self, name) for name in type(self).model_fields})


class FactoryBottom(Factory):
    """A bottom model from `factory(shape, …)`; one dense layer on top."""

    def bottom(self, shape: Shape) -> nn.Module:
        """Let the factory build it."""
        return self._made(shape)


class FactoryTop(Factory):
    """A top model from `factory(widths, classes, …)`."""

    def top(self, widths: Sequence[int], classes: int) -> nn.Module:
        """Let the factory build it."""
        return self._made(widths, classes)


def _plugin(name: str, factory: Callable[..., Any], base: type[SplitModel], given: tuple[str, ...]) -> type[SplitModel]:
    """Make a class whose fields are the parameters that follow the given ones."""
    signature = _signature(name, factory, given)
    parameters = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(parameters) < len(given) or any(p.name in TAKEN for p in parameters[len(given) :]):
        call = f"{name.rpartition(':')[2]}{signature}"
        raise UserError(
            f"model.name: {name!r} must be called as factory({', '.join(given)}, …), where no option is called "
            f"{', '.join(TAKEN)}; it is {call}"
        )
    hints = _hints(factory)
    fields: dict[str, Any] = {
        p.name: (hints.get(p.name, Any), ... if p.default is p.empty else p.default) for p in parameters[len(given) :]
    }
    made = _class(name, factory, base, fields)
    made.__doc__ = inspect.getdoc(factory) or f"{name}."
    made.factory = staticmethod(factory)  # type: ignore[attr-defined]
    return made


bottom_factory = partial(_plugin, base=FactoryBottom, given=("shape",))
"""Makes the plug-in of a function that takes the shape of a slice."""
top_factory = partial(_plugin, base=FactoryTop, given=("widths", "classes"))
"""Makes the plug-in of one that takes the lengths of the workers' vectors and the number of classes."""


def _signature(name: str, factory: Callable[..., Any], given: tuple[str, ...]) -> inspect.Signature:
    try:
        return inspect.signature(factory)
    except (ValueError, TypeError):  # as with many functions written in C
        raise UserError(
            f"model.name: {name!r} does not tell its parameters, so it cannot be a model; name a function "
            f"factory({', '.join(given)}, …) of your own that returns a torch.nn.Module"
        ) from None


def _class(name: str, factory: Callable[..., Any], base: type[SplitModel], fields: dict[str, Any]) -> type[SplitModel]:
    """Return a plug-in class with these fields; names that mean something else in such a class are refused."""
    module = getattr(factory, "__module__", None) or name.partition(":")[0]
    taken = next((field for field in fields if field.startswith("_") or field in _MEANT), None)
    if taken is not None:
        raise UserError(f"model.name: an option cannot be called {taken!r}; rename this parameter of {name}")
    try:
        return create_model(getattr(factory, "__name__", "Factory"), __base__=base, __module__=module, **fields)
    except Exception as error:  # a type that pydantic cannot check values against
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"model.name: the parameters of {name!r} cannot be options: {reason}") from None


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the parameters; none if an annotation cannot be evaluated at run time."""
    try:
        return get_type_hints(factory.__init__ if isinstance(factory, type) else factory)  # type: ignore[misc]
    except Exception:  # an annotation may be any expression, evaluated here for the first time
        return {}
