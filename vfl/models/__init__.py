"""Models split over the parties: a bottom model at each worker, a top model at the label holder."""

from collections.abc import Sequence

import torch
from torch import nn

from vfl.errors import UserError
from vfl.model_section import bottom_section, is_shared, top_section
from vfl.models.base import LinearTop, NoFeatures, SplitModel
from vfl.models.factory import bottom_factory, top_factory
from vfl.models.modes import evaluating
from vfl.partition import Shape
from vfl.registry import PluginSection, Registry
from vfl.seeds import seeded

__all__ = ["LinearTop", "SplitModel", "build_bottom", "build_top", "models", "output_width"]

models: Registry[SplitModel] = Registry(
    "model",
    SplitModel,
    "cafe.models",
    ["vfl.models.cafe_cnn", "vfl.models.lenet", "vfl.models.mlp", "vfl.models.strided_cnn"],
    adapt=bottom_factory,
)


def build_bottom(section: PluginSection, shape: Shape, seed: int, worker: int) -> nn.Module:
    """Build a worker's bottom model, initialised from the seed whatever process does it."""
    if 0 in shape:
        return NoFeatures()
    own = bottom_section(section, worker)
    plugin = models.build(own)
    with seeded(seed, "bottom", 0 if is_shared(section) else worker), models.guard(own.name, plugin, "bottom"):
        try:
            model = plugin.bottom(shape)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"model {own.name} cannot be built for a slice of shape {shape}: {error}") from None
    return _module(own.name, model, "bottom")


def build_top(section: PluginSection, widths: Sequence[int], classes: int, seed: int) -> nn.Module:
    """Build the top model, initialised from the seed whatever process does it."""
    named = top_section(section)
    own = named or bottom_section(section, 0)
    plugin = models.build(own, top_factory) if named else models.build(own)
    with seeded(seed, "top", 0), models.guard(own.name, plugin, "top"):
        try:
            model = plugin.top(widths, classes)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"model {own.name} cannot be built for {classes} classes: {error}") from None
    return _module(own.name, model, "top")


def output_width(bottom: nn.Module, shape: Shape) -> int:
    """Return the length of the vector that a bottom model puts out."""
    try:
        with torch.no_grad(), evaluating(bottom):
            z = bottom(torch.zeros(1, *shape))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        told = " ".join(str(error).split())
        raise UserError(f"model: the bottom model cannot run on a slice of shape {shape}: {told}") from None
    if not isinstance(z, torch.Tensor) or z.dim() != 2 or z.shape[0] != 1:
        got = tuple(z.shape) if isinstance(z, torch.Tensor) else type(z).__name__
        raise UserError(f"model: a bottom model must map (batch, …) to (batch, features), got {got} for one sample")
    return int(z.shape[1])


def _module(name: str, model: object, part: str) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise UserError(f"model {name}: its {part} model is {type(model).__name__}, not a torch.nn.Module")
    return model
