"""Models split over the parties: a bottom model at each worker, a top model at the label holder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from vfl.config import ModelSection
from vfl.errors import CafeError, UserError
from vfl.models.layers import evaluating
from vfl.models.plugin import LinearTop, NoFeatures, SplitModel, bottom_factory, top_factory
from vfl.partition import Shape
from vfl.registry import PluginSection, Registry
from vfl.seeds import seeded_everywhere

__all__ = ["LinearTop", "SplitModel", "build_bottom", "build_top", "is_shared", "models", "output_width", "running"]

_OURS = [f"vfl.models.{name}" for name in ("cafe_cnn", "described", "embedded", "lenet", "mlp", "strided_cnn")]
models = Registry("model", SplitModel, "cafe.models", _OURS, adapt=bottom_factory)


def build_bottom(section: PluginSection, shape: Shape, seed: int, worker: int) -> nn.Module:
    """Build a worker's bottom model, initialised from the seed: the same in every process."""
    if 0 in shape:
        return NoFeatures()
    own = _bottom_section(section, worker)
    plugin = models.build(own)
    with (
        seeded_everywhere(seed, "bottom", 0 if is_shared(section) else worker),
        models.guard(own.name, plugin, "bottom"),
    ):
        try:
            model = plugin.bottom(shape)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"model {own.name} cannot be built for a slice of shape {shape}: {error}") from None
        on = f"a slice of shape {shape}"
        return _module(own.name, plugin, model, part="bottom", x=torch.zeros(1, *shape), on=on)


def build_top(section: PluginSection, widths: Sequence[int], classes: int, seed: int) -> nn.Module:
    """Build the top model, initialised from the seed: the same in every process."""
    named = section.top if isinstance(section, ModelSection) else None
    own = named or _bottom_section(section, 0)
    plugin = models.build(own, top_factory) if named else models.build(own)
    with seeded_everywhere(seed, "top", 0), models.guard(own.name, plugin, "top"):
        try:
            model = plugin.top(widths, classes)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"model {own.name} cannot be built for {classes} classes: {error}") from None
        blank, on = torch.zeros(2, sum(widths)), f"the workers' vectors, {sum(widths)} numbers side by side"
        top = _module(own.name, plugin, model, part="top", x=blank, on=on)
        logits = _run_blank(own.name, top, blank, on)
    if not _is_dense(logits) or not logits.is_floating_point() or logits.shape != (2, classes):
        raise UserError(
            f"model{'.top' if named else ''}.name: the top model of {own.name} must map (batch, {sum(widths)}) to "
            f"(batch, {classes}), a logit for each class; it made {_got(logits)} of two samples"
        )
    return top


def is_shared(section: PluginSection) -> bool:
    """Tell whether all bottom models have the same parameters."""
    return isinstance(section, ModelSection) and section.shared


def output_width(bottom: nn.Module, shape: Shape) -> int:
    """Return the length of a bottom model's output vector; run on two samples, to see that it keeps them apart."""
    name = _BUILT[bottom][0] if bottom in _BUILT else type(bottom).__name__
    z = _run_blank(name, bottom, torch.zeros(2, *shape), f"a slice of shape {shape}")
    least = 0 if 0 in shape else 1
    if not _is_dense(z) or z.dtype != torch.float32 or z.dim() != 2 or len(z) != 2 or z.shape[1] < least:
        must = "must map (batch, …) to (batch, features), a dense float32 tensor"
        raise UserError(f"model {name}: a bottom model {must}; it made {_got(z)} of two samples")
    return int(z.shape[1])


@contextmanager
def running(model: nn.Module, doing: str) -> Iterator[None]:
    """Name the plug-in in errors that its model raises in this block; our own models' errors pass unchanged."""
    name, plugin = _BUILT.get(model, ("", None))
    if plugin is None:
        yield
    else:
        with models.guard(name, plugin, doing):
            yield


_BUILT: WeakKeyDictionary[nn.Module, tuple[str, SplitModel]] = WeakKeyDictionary()
"""Which plug-in built a model, and what the config calls it."""


def _bottom_section(section: PluginSection, worker: int) -> PluginSection:
    """Return the section that names a worker's bottom model."""
    return section.bottoms.get(worker, section) if isinstance(section, ModelSection) else section


def _is_dense(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.layout == torch.strided


def _got(value: object) -> str:
    """Return a model's output in words: its shape, and an unusual layout or dtype."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    unusual = [str(value.layout)] if value.layout != torch.strided else []
    unusual += [str(value.dtype)] if value.dtype != torch.float32 else []
    kind = " ".join(word.removeprefix("torch.") for word in unusual)
    return f"{kind} {tuple(value.shape)}".lstrip()


def _module(name: str, plugin: SplitModel, model: object, *, part: str, x: Tensor, on: str) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise UserError(f"model {name}: its {part} model is {type(model).__name__}, not a torch.nn.Module")
    if _lazy(model):  # a blank input gives such layers their sizes, and draws from torch's generator
        _run_blank(name, model, x, on)
    left = _lazy(model)
    if left:
        raise UserError(f"model {name}: the lazy layer of {left[0]} is not used by forward, so its size is not known")
    _constants(model)
    _BUILT[model] = (name, plugin)
    return model


def _run_blank(name: str, model: nn.Module, x: Tensor, on: str) -> object:
    """Return a model's output for a blank input, or raise an error that it cannot run on that."""
    try:
        with torch.no_grad(), evaluating(model):
            return model(x)
    except CafeError:
        raise
    except (Exception, SystemExit) as error:  # a user's model may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"model {name} cannot run on {on}: {reason}") from None


def _lazy(model: nn.Module) -> list[str]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in tensors if is_lazy(tensor)]


def _constants(model: nn.Module) -> None:
    """Turn parameters that are not trained into constants: every party builds them, and they are never sent."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del module._parameters[name]
                module.register_buffer(name, parameter.detach(), persistent=False)
